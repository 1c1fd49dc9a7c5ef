"""From a forward graph to a training step."""
