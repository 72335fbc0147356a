"""What an environment is: one, many side by side, and those on the host."""
