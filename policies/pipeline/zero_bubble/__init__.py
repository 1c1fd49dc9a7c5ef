"""Schedules that split the backward so that no rank waits."""
