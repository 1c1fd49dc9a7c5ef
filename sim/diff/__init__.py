"""Two schedules compared: which ops moved, which first, and why."""
