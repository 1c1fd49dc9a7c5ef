"""The job: a graph on a machine, and all that is decided before time 0."""
