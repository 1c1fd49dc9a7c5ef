"""Recorded executions: Kineto and Chakra traces."""
