"""Keys that have an effect only under a condition: the conditions, and who refuses such a key."""
