"""Recorded allocations: their neutral form, readers, and replay."""
