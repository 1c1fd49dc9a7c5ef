"""Constants of NCCL 2.30 that determine its choice.

Latencies are in us, bandwidths in GB/s, as there. Source: NVIDIA/nccl, tag 2.30: ``src/graph/tuning.cc``
(``ncclTunerConstantsDefaults``, ``treeCorrectionFactor``, ``nvlsEfficiency``), ``src/graph/topo.h`` (rates of
NVLink), ``src/graph/search.cc`` (``speedArray...``), ``src/include/device.h`` and ``comm.h`` (threads).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

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
    """GPUs of one compute capability in a node of eight with NVSwitches and a network card for each of them.

    Attributes
    ----------
    capability : int
        80, 90 or 100.
    sms : tuple of int
        SMs of the GPUs that are made of it, by which one is recognised.
    nvlink, network : float
        What a GPU sends over all its NVLinks, and a network card over PCIe.
    speeds, network_speeds : tuple of float
        What the search for rings and trees tries, in a node and among nodes.
    nvls_efficiency : float
    nvls_channels : tuple of int
        In one node, of two, of more.
    amd : bool
        Whether the hosts have CPUs of AMD, not Intel.
    ll_most : float
        Most that protocol LL moves in a node.
    ring_ll128, tree_ll128, tree, nvls_tree : tuple of float
        Most that a channel moves: in one node, of two, of more.
    """

    capability: int
    sms: tuple[int, ...]
    nvlink: float
    network: float
    speeds: tuple[float, ...]
    network_speeds: tuple[float, ...]
    nvls_efficiency: float
    nvls_channels: tuple[int, int, int]
    amd: bool
    ll_most: float
    ring_ll128: tuple[float, float, float]
    tree_ll128: tuple[float, float, float]
    tree: tuple[float, float, float]
    nvls_tree: tuple[float, float, float]


_HOPPER: Final = Generation(
    capability=90,
    sms=(132,),
    nvlink=18 * 20.6,
    network=48.0,  # 400 Gb/s behind PCIe 5.0 x16
    speeds=(60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    network_speeds=(48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
    nvls_efficiency=0.85,
    nvls_channels=(16, 16, 16),
    amd=False,
    ll_most=141.0,
    ring_ll128=(36.7, 36.7, 36.7),
    tree_ll128=(36.7, 36.7, 29.0),
    tree=(38.7, 41.4, 36.0),
    nvls_tree=(0.0, 57.7, 45.5),
)

GENERATIONS: Final[Mapping[str, Generation]] = {
    "a100": Generation(
        capability=80,
        sms=(108,),
        nvlink=12 * 20.0,
        network=24.0,  # 200 Gb/s behind PCIe 4.0 x16
        speeds=(40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
        network_speeds=(48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12),
        nvls_efficiency=0.0,
        nvls_channels=(0, 0, 0),
        amd=True,
        ll_most=87.7,
        ring_ll128=(20.0, 20.0, 20.0),
        tree_ll128=(20.0, 20.0, 20.0),
        tree=(24.0, 23.6, 17.8),
        nvls_tree=(24.0, 23.6, 17.8),
    ),
    "h100": _HOPPER,
    "h200": _HOPPER,
    "b200": Generation(
        capability=100,
        sms=(148,),
        nvlink=18 * 40.1,
        network=48.0,  # 400 Gb/s behind PCIe 5.0 x16
        speeds=(90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
        network_speeds=(96, 86, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24,
                        0.12),
        nvls_efficiency=0.74,
        nvls_channels=(24, 32, 24),
        amd=False,
        ll_most=2 * 141.0,
        ring_ll128=(40.0, 40.0, 40.0),
        tree_ll128=(55.6, 31.67, 20.0),
        tree=(70.0, 42.8, 24.0),
        nvls_tree=(0.0, 96.0, 80.0),
    ),
}  # fmt: skip

NETWORK_LL: Final = {False: (39.0, 20.4), True: (22.5, 19.0)}
"""Whether the hosts have CPUs of AMD -> most that protocol LL moves among two nodes, and among more."""
