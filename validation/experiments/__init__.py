"""Predicting and measuring: every experiment, and how far apart the two are."""
