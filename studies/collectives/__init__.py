"""Measured collectives compared with models."""
