"""The computation graph: its columns, how it is built, how it is walked."""
