"""What is said of results: comparisons, explanations, files."""
