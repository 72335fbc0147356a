"""The fragments of a run: sampling (compiled or on the host), statistics, experience and learning."""
