"""The parts of a scenario but its workload: which keys each has."""
