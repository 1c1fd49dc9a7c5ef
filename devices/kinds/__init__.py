"""CPUs, GPUs and NPUs: how each issues and executes."""
