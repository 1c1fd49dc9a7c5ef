"""The scenario file: YAML with places, values with units, and what is wrong with it."""
