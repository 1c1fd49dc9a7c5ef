"""A fixed piece of work on the calling thread: it warms the thread, and tells at which speed its core runs.

The clock of a shared processor drops by some ten percent, on all cores at once, and comes back after a second
or a minute; nothing that the guest of a hypervisor counts tells so. So every thread takes its own pulse where
it works, right before the first op and right after the last one, in the state of clock, caches and company in
which the ops run::

    each thread   warm-up ─ pulse ─┤ all are ready ├─ ops of the run ─┤ it is over ├─ pulse
"""

from __future__ import annotations

import statistics
from typing import Final

import numpy as np

from validation.host.clock import now_ns

_SIZE: Final = 384
_WARM: Final = 2
_BEATS: Final = 7


class Products:
    """The product of two random matrices, again and again, in memory of its own.

    Examples
    --------
    >>> Products().pulse_ns() > 0
    True
    """

    def __init__(self) -> None:
        self.a = np.random.default_rng(1).normal(size=(_SIZE, _SIZE)) / _SIZE**0.5
        self.b = np.zeros_like(self.a)
        self.b.fill(0.0)  # touches the pages

    def pulse_ns(self) -> int:
        """Return the median time of a product now."""
        taken = []
        for k in range(_WARM + _BEATS):
            begin = now_ns()
            np.matmul(self.a, self.a, out=self.b)
            if k >= _WARM:
                taken.append(now_ns() - begin)
        return int(statistics.median(taken))
