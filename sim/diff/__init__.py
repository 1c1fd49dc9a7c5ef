"""Comparison of two schedules: which ops moved, which first, and why."""
