"""The fake device with costs of the size that an H200 has, to see how long a session would be there.

Rates and host costs are rough, and on the slow side: products at 600 TFLOP/s, memory at 3 TB/s, a link of
50 GB/s, 8 us for a launch from Python. What is summed up is `host_ms`: the host's own work and its waiting.
"""

from __future__ import annotations

from typing import Any

import fake_torch

HOST_US = {"launch": 8.0, "event": 2.0, "fill": 8.0, "norm": 60.0, "allocation": 10.0}


class Cuda(fake_torch.Cuda):
    """Costs by kind and size."""

    QUERY_MS = 0.001
    HELD_UP_S = 0.0

    def kernel_ms(self, kind: str, n: int) -> float:
        nbytes = 2 * n * n
        if kind == "mm":
            return max(0.004, 2e3 * n**3 / 600e12)
        if kind.startswith("copy p"):
            return 0.008 + 1e3 * nbytes / (10e9 if "pageable" in kind else 50e9)
        return 0.003 + 1e3 * 3 * nbytes / 3e12

    def spend(self, what: str, tensor: Any = None) -> None:
        self.host_ms += HOST_US[what] / 1000
        if tensor is None:
            return
        nbytes = 2 * tensor.n**2
        if tensor.where != "cuda":  # the host's own memory; pinned memory is slow to get
            self.host_ms += 1e3 * nbytes / (1e9 if what == "allocation" else 5e9)
        elif what == "allocation" and nbytes > 1 << 20:
            self.host_ms += 0.5
        if what == "norm":
            self.synchronize()
            self.host_ms += 1e3 * 3 * nbytes / 3e12


class Torch(fake_torch.Torch):
    """Torch with such a device."""

    def __init__(self) -> None:
        super().__init__()
        self.cuda = Cuda()


def own_clock(monkeypatch: Any, torch: Torch) -> None:
    """Let the backend read the fake host's clock, so that a session is the same every time."""

    def now_ns() -> int:
        return int(torch.cuda.host_ms * 1e6)

    for module in ("gpu.cuda", "gpu.torch_device", "gpu.gpu_probes", "real.driver"):
        monkeypatch.setattr(f"validation.{module}.now_ns", now_ns)
    monkeypatch.setattr("validation.gpu.cuda.run_queue_ns", lambda: None)
