"""Verbs that set runs side by side."""
