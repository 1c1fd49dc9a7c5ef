"""Pipelines as a workload: their keys, their stages and ranks, and what is reported of them."""
