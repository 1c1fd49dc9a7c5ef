"""Graphs made from a few sizes: models, input pipelines, pipelines of stages, random graphs."""
