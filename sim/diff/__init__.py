"""Two schedules compared: what moved, what moved first and why, what is in one of them only."""
