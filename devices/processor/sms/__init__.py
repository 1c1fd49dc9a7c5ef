"""The SMs and the DRAM of a GPU, shared by its kernels."""
