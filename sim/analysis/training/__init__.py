"""What parallel training does besides taking time: stale updates, and tokens on unequal experts."""
