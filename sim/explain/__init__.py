"""Why did it take so long? Idle time by reason, the executed critical path, and who is to blame."""
