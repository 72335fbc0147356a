"""Arrays in, arrays out: distributions, losses, returns, running statistics, schedules, optimizers."""
