"""Traces as files that other programs read: tables, and timelines for Chrome and Perfetto."""
