"""A scenario file as text with places: YAML, the document, and what pydantic found wrong."""
