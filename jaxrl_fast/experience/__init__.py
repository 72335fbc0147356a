"""What is stored of rollouts and handed to learning, and how observations are seen."""
