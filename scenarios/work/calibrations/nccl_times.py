"""Collectives of a training step as NCCL chooses and times them, in place of the formula of a ring.

::

    calibration: {nccl: h100, ...}
        in one node          NCCL's choice of algorithm, protocol, channels, at rates fitted to measured times
        over several nodes   the same choice, and what NCCL's tuner expects of it

Source of both: `devices.collectives.nccl`.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from devices.collectives.nccl.constants import GENERATIONS
from devices.collectives.nccl.rates import known_us
from devices.collectives.nccl.tuner import Tuner
from scenarios.build.train.calibration import CollectiveTime
from scenarios.build.train.kernels import CollectiveKind
from sim.words.errors import InputError

__all__ = ["nccl_times"]

_MOST_PER_NODE: Final = 8


@cache
def nccl_times(gpu: str) -> CollectiveTime:
    """Return times of collectives among GPUs of a generation, eight or fewer a node.

    Examples
    --------
    >>> inside, across = (nccl_times("h100")("all_gather", 2**28, 8, nodes, "bf16") for nodes in (1, 4))
    >>> 600_000 < inside < across < 900_000
    True
    """
    tuners: dict[tuple[int, ...], Tuner] = {}

    @cache
    def time_ns(kind: CollectiveKind, nbytes: int, per_node: int, nodes: int, dtype: str) -> float:
        if per_node > _MOST_PER_NODE:
            raise InputError(f"NCCL's choice is known of nodes of 8 GPUs, and a group has {per_node} on one")
        where = (per_node,) * nodes
        if kind == "send":  # two ranks of the group
            where = (1, 1) if nodes > 1 else (2,)
        tuner = tuners.setdefault(where, Tuner(GENERATIONS[gpu], where))
        return 1000 * known_us(gpu, kind, where, nbytes, tuner.choose(kind, nbytes))

    return time_ns
