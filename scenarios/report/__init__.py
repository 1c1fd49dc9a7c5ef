"""What is said of runs: comparisons, explanations, tables and pictures."""
