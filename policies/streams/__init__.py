"""Stream assignments: on which stream of its device each op is launched."""
