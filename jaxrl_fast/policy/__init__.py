"""A trained policy: action selection, files, export."""
