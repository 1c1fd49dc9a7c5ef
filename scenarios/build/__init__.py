"""Workloads built from a few numbers: models, loops and conditions, random graphs, data loading."""
