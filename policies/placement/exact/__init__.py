"""Placements that are optimal for what they model."""
