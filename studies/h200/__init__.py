"""What fits the cost models to the measured H200 tables, and what the fits are worth."""
