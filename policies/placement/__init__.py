"""Which device each op runs on: list scheduling, cuts, exact solutions, search."""
