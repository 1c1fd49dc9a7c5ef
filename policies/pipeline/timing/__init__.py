"""What a schedule takes, in time and in activations, and how it looks."""
