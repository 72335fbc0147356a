"""Environments stepped outside JAX: how their rollouts reach the graph of a run."""
