"""The computation graph: its columns, how it is built, and what follows from its shape alone."""
