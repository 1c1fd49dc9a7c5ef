"""A training step of a language model, from its sizes: layers, memory, layout, calibration."""
