"""What a graph is made of, in tables and pictures."""
