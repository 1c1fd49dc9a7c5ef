"""What a run leaves behind, in columns, and what follows from it alone: its plan, its dependencies."""
