"""Task graphs of the literature, and profiles of chains of layers."""
