"""Real execution on a GPU, through torch."""
