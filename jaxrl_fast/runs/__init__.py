"""What a run leaves behind: its folder, checkpoints, and lines on the terminal."""
