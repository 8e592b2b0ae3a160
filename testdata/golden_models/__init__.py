"""What generate_golden.py is made of: families, their weights, the search for a seed, the check."""
