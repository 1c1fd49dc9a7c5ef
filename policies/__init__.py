"""Decisions, which take no time: what runs where, in which order, on which stream."""
