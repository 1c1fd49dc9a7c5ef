"""Tensors that live and die during a run."""
