"""Recorded programs: how they ran, how they run again, and what would change that."""
