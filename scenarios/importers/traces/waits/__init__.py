"""What tasks, streams and calls of a recorded process wait for."""
