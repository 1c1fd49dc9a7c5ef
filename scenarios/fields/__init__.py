"""The sections of a scenario as pydantic models, and the results that may be asked for."""
