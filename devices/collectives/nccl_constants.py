"""Constants of NCCL 2.30 that determine its choice.

Latencies are in us, bandwidths in GB/s, as there. Source: NVIDIA/nccl, tag 2.30: ``src/graph/tuning.cc``
(``ncclTunerConstantsDefaults``, ``treeCorrectionFactor``, ``nvlsEfficiency``), ``src/graph/topo.h`` (rates of
NVLink), ``src/graph/search.cc`` (``speedArray...``), ``src/include/device.h`` and ``comm.h`` (threads).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from devices.presets import yaml_beside

PROTOCOLS: Final = ("ll", "ll128", "simple")

LATENCY_US: Final[Mapping[str, Mapping[str, tuple[float, float, float]]]] = {
    "tree": {"base": (6.8, 14.0, 8.4), "nvlink": (0.6, 1.25, 4.0), "net": (5.0, 8.5, 14)},
    "ring": {"base": (6.6, 14.0, 8.4), "nvlink": (0.6, 1.9, 3.4), "net": (2.7, 4.0, 14.0)},
    "nvls": {"base": (0, 0, 0), "nvlink": (0, 0, 25), "net": (0, 0, 18)},
    "nvls-tree": {"base": (0, 0, 0), "nvlink": (0, 0, 25), "net": (0, 0, 20.9)},
    "pat": {"base": (8.0, 8.0, 8.0), "nvlink": (0, 0, 4.0), "net": (0, 0, 14)},
}
"""Algorithm -> latency before the first step, and of a step by what it goes over, of each protocol.

Of several equally fast algorithms the first one wins. Those that need a network which reduces (CollNet) are
not among them."""

THREADS: Final[Mapping[str, tuple[int, int]]] = {"ll": (512, 8), "ll128": (640, 8), "simple": (512, 64)}
"""Protocol -> most threads of a channel, and the bytes that make one more worth it."""

BANDWIDTH_PARTS: Final[Mapping[str, tuple[float, float, float]]] = {
    "ring": (0.5, 0.92, 1.0),
    "tree": (1 / 3.8, 120 / 128, 1.0),
}
"""Algorithm -> part of its bandwidth that each protocol reaches."""

TREE_PART: Final = 0.92
"""What a tree reaches of the bandwidth of its channels."""

TREE_CORRECTION: Final[Mapping[str, tuple[float, ...]]] = {
    "ll": (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1),
    "ll128": (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1),
    "simple": (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8,
               .9, .9, .9),
}  # fmt: skip
"""Protocol -> what a tree's bandwidth is multiplied by, from 64 B on, for each power of two."""


@dataclass(frozen=True)
class Generation:
    """GPUs of one compute capability in a node: what ``nccl_gpus.yaml`` says of each."""

    capability: int
    sms: Sequence[int]
    links: int
    link: float
    network: float
    speeds: Sequence[float]
    network_speeds: Sequence[float]
    nvls_efficiency: float
    nvls_channels: Sequence[int]
    amd: bool
    ll_most: float
    ring_ll128: Sequence[float]
    tree_ll128: Sequence[float]
    tree: Sequence[float]
    nvls_tree: Sequence[float]

    @property
    def nvlink(self) -> float:
        """GB/s that a GPU sends over all its NVLinks."""
        return self.links * self.link


_GPUS: Final = yaml_beside(__file__, "nccl_gpus.yaml")
GENERATIONS: Final[Mapping[str, Generation]] = {name: Generation(**row) for name, row in _GPUS.items()}

NETWORK_LL: Final = {False: (39.0, 20.4), True: (22.5, 19.0)}
"""Whether the hosts have CPUs of AMD -> most that protocol LL moves among two nodes, and among more."""
