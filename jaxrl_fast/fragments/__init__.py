"""The fragments of a run: sampling, learning, statistics, and environments on the host."""
