"""The report: numbers, page, pictures."""
