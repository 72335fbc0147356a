"""A graph of fragments as compiled programs on devices; knows no reinforcement learning."""
