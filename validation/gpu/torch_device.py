"""The state of a GPU: awake or not, its current speed, and its own description.

An idle GPU lowers its clocks within a second (an H200 from 1980 to 345 MHz) and takes milliseconds of work to
raise them again, and this session idles whenever the simulator computes. So nothing is timed before the
device is awake: when a fixed product takes equally long twice in a row::

    idle ─► [ spin 5 ms ]─ product ─[ spin 5 ms ]─ product ─ ... ─ alike ─► what is to be measured

The spin is one thread: it raises the clocks without heating the chip, which would lower them.
"""

from __future__ import annotations

import statistics
import subprocess
from typing import Any, Final

from validation.gpu.gpu_probes import timed_ns
from validation.real.clock import now_ns

CYCLES_PER_NS: Final = 2
"""For `torch.cuda._sleep`, which counts an SM's clocks: at most 1.98 on an H200. Slower ones spin longer."""

_IDLE_NS: Final = 300_000_000
"""After this time without work the device may be asleep."""

_ALIKE: Final = 0.01
"""Maximum relative difference of two products in a row once the device is awake."""

_ROUNDS: Final = 100
"""Maximum attempts to wake it: half a second; measurements after that still have sentinels."""

_SMI: Final = (
    "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "temperature.gpu", "power.draw",
    "power.limit",
)  # fmt: skip


class DeviceState:
    """Wakes a device, and measures its speed.

    Parameters
    ----------
    torch : module
    """

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self._matrices: tuple[Any, ...] | None = None
        self._busy_ns = -_IDLE_NS

    def busy(self) -> None:
        """Note that the device is working now."""
        self._busy_ns = now_ns()

    def product_ns(self) -> int:
        """Return the time of a fixed product and a fixed copy: 4096 x 4096, bfloat16, random data."""
        torch = self.torch
        if self._matrices is None:
            self._matrices = tuple(
                torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(3)
            )
        a, b, out = self._matrices

        def launch() -> None:
            torch.mm(a, b, out=out)
            out.copy_(a, non_blocking=True)

        return timed_ns(torch, launch)

    def wake(self) -> None:
        """Keep the device busy until its clocks are up; return at once if it has just worked."""
        if now_ns() - self._busy_ns < _IDLE_NS:
            return
        last = 0
        for _ in range(_ROUNDS):
            self.torch.cuda._sleep(CYCLES_PER_NS * 5_000_000)
            ns = self.product_ns()
            if abs(ns - last) <= _ALIKE * ns:
                break
            last = ns
        self.busy()

    def sentinel_ns(self) -> int:
        """Return the median of fifteen products on the awake device, which takes about ten milliseconds."""
        self.wake()
        median = statistics.median(self.product_ns() for _ in range(15))
        self.busy()
        return int(median)


def smi_facts() -> dict[str, str]:
    """Return ``nvidia-smi``'s data on the first GPU: driver, clocks, temperature, power.

    For the provenance of a measurement; if the tool is missing or does not answer, that is recorded.
    """
    query = [
        "nvidia-smi", "--id=0", f"--query-gpu={','.join(_SMI)}", "--format=csv,noheader",
    ]  # fmt: skip
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return {"clocks": f"nvidia-smi does not say: {type(error).__name__}"}
    values = (
        [value.strip() for value in done.stdout.strip().splitlines()[0].split(",")] if done.stdout else []
    )
    return dict(zip(_SMI, values, strict=False))
