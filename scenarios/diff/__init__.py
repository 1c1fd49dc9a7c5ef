"""`sim diff`: what its two sides may be, and what it answers."""
