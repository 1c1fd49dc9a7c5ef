"""Traces as files for other programs: tables, and timelines for Chrome and Perfetto."""
