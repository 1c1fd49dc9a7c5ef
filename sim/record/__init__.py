"""The record of a run: the columns of a trace as they are written, the edges between its rows, the plan."""
