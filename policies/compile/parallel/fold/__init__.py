"""Ranks that do the same at the same time: one of each sort is made."""
