"""The least makespan of a job: what a solver knows of it, and how a run follows what was found."""
