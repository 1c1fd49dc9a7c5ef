"""Resources shared by the tasks of one device: the cores of a CPU or NPU, the SMs of a GPU."""
