"""The fast engine: the loop over instants on columns of whole numbers, compiled where it can be."""
