"""TensorFlow graphs, as JSON."""
