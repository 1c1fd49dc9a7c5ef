"""Recordings as models: the schedule that was recorded, and the machine on which it comes out again."""
