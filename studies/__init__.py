"""Studies that answer a question with a table: the effect of a framework's choices on the same graphs."""
