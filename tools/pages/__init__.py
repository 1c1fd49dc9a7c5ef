"""Pages of the documentation that are made from data."""
