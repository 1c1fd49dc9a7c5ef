"""How long an op takes, as a formula of its sizes and of a device's parameters."""
