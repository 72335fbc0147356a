"""Adapters of suites whose packages are optional: one file each, and a record in `plugins.SUITES`."""
