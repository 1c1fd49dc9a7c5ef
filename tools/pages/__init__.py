"""Documentation pages generated from data."""
