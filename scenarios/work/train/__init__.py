"""``workload: {train: ...}``: fields, what is told, and what would make it fit."""
