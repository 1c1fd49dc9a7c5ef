"""Scenarios as regression tests: what does not hold, where it stands, and new values for it."""
