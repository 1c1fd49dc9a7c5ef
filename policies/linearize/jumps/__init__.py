"""Control flow as a linear program with jumps, for virtual machines."""
