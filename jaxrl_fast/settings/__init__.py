"""Settings: from the arguments of a command line to a run that is ready to start."""
