"""Data sets: recorded episodes, runs that learn from them, and their collection."""
