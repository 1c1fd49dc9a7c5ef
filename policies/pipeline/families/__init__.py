"""Families of schedules, one a file."""
