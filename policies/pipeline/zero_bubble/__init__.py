"""Zero-bubble schedules: the backward split, so that weight gradients fill the bubbles."""
