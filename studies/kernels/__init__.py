"""Fits `devices.cost.kernel_model` to measured kernels, and judges it on rows that no fit has seen."""
