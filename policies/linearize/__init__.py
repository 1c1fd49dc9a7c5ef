"""Linearizers: which program order the ops of a graph get."""
