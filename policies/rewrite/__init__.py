"""Graph to graph: partitioning, fusion, simplification, backward and optimizer, layout."""
