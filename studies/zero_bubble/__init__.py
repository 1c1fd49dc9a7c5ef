"""Measured throughputs of zero-bubble schedules, and a model of them."""
