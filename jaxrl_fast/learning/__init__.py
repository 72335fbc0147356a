"""What an algorithm declares, and what is done once for all algorithms: acting, data, updates, the graph of a run."""
