"""Reports on runs: comparisons, explanations, tables and pictures."""
