"""Networks: an input stage, a torso, heads."""
