"""Runs, graphs and episodes as pages and pictures."""
