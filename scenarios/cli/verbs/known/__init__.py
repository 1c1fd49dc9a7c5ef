"""Verbs that tell what a scenario may name, and what ships with the program."""
