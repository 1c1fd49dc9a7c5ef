"""How long a collective takes in one node: latency per step, bandwidth per byte, best of the protocols.

::

    ring, 4 ranks: reduce-scatter and all-gather take 3 steps, all-reduce takes 6;
    in each, every rank passes a quarter of the data to the next

        0 --> 1 --> 2 --> 3 --> 0     time = launch + steps * hop + bytes on a link / rate + bytes / copy rate

    LL       low latency: data and flags together, half of each store is flags      small messages
    LL128    flags once in 128 bytes                                                in between
    Simple   large slots with fences between the steps                              large messages
    NVLS     the switch adds up and multicasts (all-reduce only): no steps          many ranks

The alpha-beta model of Hockney, with ring counts as in Thakur, Rabenseifner and Gropp, *Optimization of
Collective Communication Operations in MPICH* (2005); the protocols are those of NCCL (Hu et al.,
*Demystifying NCCL*, arXiv 2507.04786). The library is taken to choose the fastest. For an all-reduce in the
switch, a rank sends all its data and receives its part of the sums, (1 + 1/ranks) of the message in all. Each
rank's own copy goes through memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from devices.cost.parameters import parameter
from sim.base.errors import InputError, UnknownNameError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
"""What is modelled; `nbytes` is the whole buffer: gathered, to be scattered, or exchanged, per rank."""


@dataclass(frozen=True)
class NcclParameters:
    """What is particular to a node; :mod:`studies.h200.fit` finds the values."""

    launch_ns: float = parameter(4000, 1000, 10000, "launch, and the ranks finding each other")
    ll_hop_ns: float = parameter(500, 10, 2000, "one step with protocol LL")
    ll_bytes_per_s: float = parameter(2e10, 1e9, 2e11, "rate of a rank's links with protocol LL")
    ll128_hop_ns: float = parameter(1000, 10, 5000, "one step with protocol LL128")
    ll128_bytes_per_s: float = parameter(1.5e11, 1e10, 4e11, "rate of a rank's links with protocol LL128")
    simple_hop_ns: float = parameter(3000, 10, 20000, "one step with protocol Simple")
    simple_bytes_per_s: float = parameter(4e11, 1e11, 4.5e11, "rate of a rank's links with protocol Simple")
    nvls_ns: float = parameter(20000, 1000, 40000, "setting up a reduction in the switch")
    nvls_bytes_per_s: float = parameter(3e11, 5e10, 4.5e11, "rate of a rank's links in such a reduction")
    copy_bytes_per_s: float = parameter(1.5e12, 3e11, 5e12, "rate at which a rank's own data is copied")
    pairwise_ns: float = parameter(500, 0, 10000, "what starting point-to-point exchanges costs more")


def collective_ns(
    collective: str, ranks: npt.ArrayLike, nbytes: npt.ArrayLike, parameters: NcclParameters
) -> IntArray:
    """Return the duration of a collective from the arrival of its last rank.

    Parameters
    ----------
    collective : str
        One of :data:`COLLECTIVES`.
    ranks : array_like of int
        GPUs that take part, all in one node; 1 costs a launch and a copy.
    nbytes : array_like of int
        Size of the buffer: of what is reduced, of all that is gathered, of all that is scattered, or of what
        one rank exchanges. Broadcast with `ranks`.
    parameters : NcclParameters
        Of the node; ``devices.cost.fitted.load_fit().collective`` for eight H200.

    Returns
    -------
    ndarray of int64
        Nanoseconds, rounded half up, in the broadcast shape.

    Raises
    ------
    UnknownNameError
        The collective is not modelled.
    InputError
        Ranks or bytes are no whole numbers of at least 1 and 0.

    Examples
    --------
    >>> from devices.cost.fitted import load_fit
    >>> node = load_fit("h200").collective
    >>> int(collective_ns("all_reduce", 8, 2**29, node)) > int(collective_ns("all_gather", 8, 2**29, node))
    True
    """
    if collective not in COLLECTIVES:
        raise UnknownNameError("collective", collective, COLLECTIVES)
    for name, given, least in (("ranks", np.asarray(ranks), 1), ("nbytes", np.asarray(nbytes), 0)):
        if given.size and (given.dtype.kind not in "iu" or int(given.min()) < least):
            raise InputError(f"{name} of a collective must be whole numbers of at least {least}, not {given}")
    count, size = np.broadcast_arrays(np.asarray(ranks, dtype=float), np.asarray(nbytes, dtype=float))
    duration = _collective(collective, count, size, parameters)
    return np.floor(duration + 0.5).astype(np.int64)


def _collective(collective: str, ranks: FloatArray, nbytes: FloatArray, p: NcclParameters) -> FloatArray:
    rounds = 2 if collective == "all_reduce" else 1  # a reduce-scatter, then an all-gather
    steps = np.minimum(ranks - 1, 1) if collective == "alltoall" else rounds * (ranks - 1)
    on_link = rounds * (ranks - 1) / ranks * nbytes
    protocols = [
        (p.ll_hop_ns, p.ll_bytes_per_s),
        (p.ll128_hop_ns, p.ll128_bytes_per_s),
        (p.simple_hop_ns, p.simple_bytes_per_s),
    ]
    ways = [p.launch_ns + steps * hop_ns + on_link / (rate / 1e9) for hop_ns, rate in protocols]
    if collective == "all_reduce":
        ways.append(p.nvls_ns + (1 + 1 / ranks) * nbytes / (p.nvls_bytes_per_s / 1e9))
    exchange_ns = p.pairwise_ns if collective == "alltoall" else 0.0
    total: FloatArray = np.minimum.reduce(ways) + nbytes / (p.copy_bytes_per_s / 1e9) + exchange_ns
    return total
