"""Compiling for accelerators that are not here, and what the compiler says of the program."""
