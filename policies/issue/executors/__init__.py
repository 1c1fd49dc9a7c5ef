"""Executors of real frameworks, which decide by queues of their own."""
