"""The training loop around the graph: chunks, records, checkpoints, evaluator processes and errors."""
