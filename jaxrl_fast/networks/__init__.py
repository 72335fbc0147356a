"""Networks from observations to numbers."""
