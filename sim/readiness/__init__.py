"""Which tasks become eligible when one ends: counters on a static graph, tokens under control flow."""
