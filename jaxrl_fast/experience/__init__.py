"""What becomes of rollouts on their way to the learners."""
