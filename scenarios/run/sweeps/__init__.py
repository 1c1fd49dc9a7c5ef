"""Sweeps: points, files, processes and clusters."""
