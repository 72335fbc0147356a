"""Evaluation: episodes with the greedy policy, during and after training."""
