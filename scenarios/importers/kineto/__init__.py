"""PyTorch profiler traces and those that this program writes, as programs that run again."""
