"""Networks from observations to outputs: convolutions, dense layers, GRUs."""
