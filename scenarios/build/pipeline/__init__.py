"""A pipeline schedule as a computation graph."""
