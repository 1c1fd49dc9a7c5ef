"""The fast engine: the loop over instants on columns of whole numbers, compiled if possible."""
