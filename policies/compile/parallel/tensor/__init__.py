"""Tensor and sequence parallelism: which products are split, and what ranks exchange because of it."""
