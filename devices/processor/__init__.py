"""What the tasks of one device share: the cores of a CPU or NPU, the SMs of a GPU."""
