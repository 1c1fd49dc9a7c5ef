"""Traces that a simulation wrote, as graphs that run as that simulation did."""
