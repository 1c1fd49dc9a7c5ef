"""What happened: the columns of a trace while they are written, the edges between their rows, the plan."""
