"""Schedules as data: actions, programs of ranks, what they wait for, and their text form."""
