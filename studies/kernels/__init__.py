"""Fit `devices.cost.kernel_model` to measured kernels, and judge it on rows that no fit has seen."""
