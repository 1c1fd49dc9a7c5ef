"""What fails in a run: ops, and parts of the machine."""
