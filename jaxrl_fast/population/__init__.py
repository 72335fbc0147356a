"""Many learners in one program: search over rates, successive halving, and population-based
training.
"""
