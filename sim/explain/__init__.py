"""Explanations of the makespan: paths, idle time, bounds, memory, and sentences about them."""
