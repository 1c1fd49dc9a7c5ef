"""Steps of several micro-batches."""
