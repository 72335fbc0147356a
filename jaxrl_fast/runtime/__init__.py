"""A graph of fragments as compiled programs on devices, independent of reinforcement learning."""
