"""Rewrites of a graph before it is placed: one after another, and ranks that are folded."""
