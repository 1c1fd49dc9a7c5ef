"""The kinds of `workload:`, each with its keys and the graph that it builds."""
