"""The verbs of the command, by what they are about."""
