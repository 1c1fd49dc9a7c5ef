"""The verbs of the command, one per file."""
