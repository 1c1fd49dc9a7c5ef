"""What was measured, as tables, and what they say between the measurements."""
