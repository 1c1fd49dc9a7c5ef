"""The cores of a CPU or an NPU, shared by its ops."""
