"""What a job needs at least, and what a run used: bounds, the critical path, memory, cores."""
