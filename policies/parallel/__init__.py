"""One training step on many ranks: data, tensor, expert, context and pipeline parallelism."""
