"""Interfaces of environments: a single one, many side by side, and those stepped on the host."""
