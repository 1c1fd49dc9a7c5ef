"""The words and the engine."""

from sim.graph import Graph
from sim.graph_builder import GraphBuilder

__all__ = ["Graph", "GraphBuilder"]
