"""A file each: hyper-parameters, networks, how an action is chosen, losses, what data is wanted."""
