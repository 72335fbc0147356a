"""The loop around the graph: chunks, records, checkpoints, processes, errors."""
