"""Optimal schedules by constraint programming (CP-SAT of OR-tools, the extra ``opt``)."""
