"""Fragments and channels, where they run, and the compiled program. Knows no reinforcement learning."""
