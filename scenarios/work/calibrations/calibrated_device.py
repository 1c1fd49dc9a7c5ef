"""Which calibration is of the GPU that a device is: the one with its peak and its bandwidth."""

from __future__ import annotations

from scenarios.build.train.calibration import Calibration
from scenarios.work.calibrations.calibrations import calibration_names, named_calibration
from sim import Device, GraphBuilder
from sim.words.units import format_bytes

__all__ = ["calibration_for", "why_another_gpu"]


def why_another_gpu(calibration: Calibration, device: Device, dtype: str) -> str | None:
    """Return how the GPU of a calibration differs from a device; None: it does not, or nothing tells.

    Parameters
    ----------
    calibration : Calibration
    device : Device
    dtype : str
        Of the products.
    """
    peak, bandwidth = _roofs(device, dtype)
    mine, theirs = (calibration.peak, calibration.memory_bandwidth), (peak, bandwidth)
    if all(abs(a - b) <= 0.01 * b or b != b for a, b in zip(mine, theirs, strict=True)):  # nan: not told
        return None
    return f"{calibration.name} is of a GPU of {_told(*mine)}, and {device.name} has {_told(*theirs)}"


def calibration_for(device: Device, dtype: str) -> Calibration | None:
    """Return the shipped calibration of the GPU that a device is; None: there is none."""
    if any(roof != roof for roof in _roofs(device, dtype)):
        return None
    for name in calibration_names():
        found = named_calibration(name)
        if why_another_gpu(found, device, dtype) is None:
            return found
    return None


def _roofs(device: Device, dtype: str) -> tuple[float, float]:
    """Return peak and bandwidth of a device, nan where it has no such number."""
    if device.cost is None:
        return float("nan"), float("nan")
    builder = GraphBuilder("product")
    builder.op("product", kind="matmul", flops=1, dtype=dtype)
    roofs = device.cost.roofs(builder.build(), device)
    return float(roofs.flop_per_s[0]), float(roofs.bytes_per_s)


def _told(peak: float, bandwidth: float) -> str:
    return f"{peak / 1e12:,.4g} TFLOP/s and {format_bytes(bandwidth)}/s"
