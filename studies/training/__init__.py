"""Predicted training steps compared with published ones."""
