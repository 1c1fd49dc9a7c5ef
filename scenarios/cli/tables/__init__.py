"""What commands print of a sweep, of a training run: a table each."""
