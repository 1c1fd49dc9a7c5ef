"""A scenario file as text with places: YAML, the document, and pydantic's errors in it."""
