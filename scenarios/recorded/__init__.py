"""Recorded programs as they ran, and what-if variants of them."""
