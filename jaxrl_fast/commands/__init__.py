"""From the words of a command line to a run that is ready to start."""
