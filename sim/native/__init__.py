"""Graph walks that are compiled with the kernel, and how a compiled module is found."""
