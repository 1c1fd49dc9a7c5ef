"""The neutral format of graphs, `sim.graph/1`."""
