"""See docs/design.md for the layers."""
