"""Placements: on which device each op runs."""
