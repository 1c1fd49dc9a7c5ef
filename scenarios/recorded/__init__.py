"""Recorded programs as they ran, and what if they had run otherwise."""
