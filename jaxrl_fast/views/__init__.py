"""Pages and pictures of runs, graphs and episodes."""
