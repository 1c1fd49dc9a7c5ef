"""The sections of a scenario as pydantic models, and the results that it may name."""
