"""PyTorch profiler traces, and traces that this program writes, as programs that run again."""
