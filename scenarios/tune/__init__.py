"""Searching for the best setting, order, placement and streams of a scenario: ``sim tune``."""
