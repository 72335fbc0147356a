"""Compiling for accelerators that this machine does not have, and the compiler's analysis of the
program.
"""
