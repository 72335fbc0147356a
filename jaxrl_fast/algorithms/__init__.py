"""The algorithms, a file each: hyper-parameters, networks, choice of actions, losses, and the data they need."""
