"""The kinds of device: what a description of each becomes."""
