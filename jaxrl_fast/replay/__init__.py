"""Replay: ring buffers of steps, how batches are sampled from them, and how they are changed."""
