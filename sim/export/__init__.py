"""Traces as files that other programs read: tables, Chrome and Perfetto timelines."""
