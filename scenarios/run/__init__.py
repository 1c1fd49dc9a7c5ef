"""From a scenario to results: load, decide, run, repeat, sweep, check."""
