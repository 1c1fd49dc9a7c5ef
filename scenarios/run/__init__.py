"""From a scenario to its trace: load, check, decide, prepare, execute."""
