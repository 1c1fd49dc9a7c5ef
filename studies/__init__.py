"""Questions answered with a table: what a framework's choices cost on the same graphs."""
