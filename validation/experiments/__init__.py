"""Prediction and measurement of every experiment, and their difference."""
