"""How long collectives of one node take by what was measured: a few rates, of what NCCL chose.

::

    ring       launch + steps x hop + bytes on a link / channels x channel + own bytes x own
               LL: + bytes on a link x rate of LL;  Simple: + a longer start
    NVLS       start + (1 + 1/n) bytes x rate, the first 20 MB slower
    exchange   start + peers x peer + bytes to others x rate, the first 20 MB slower,
               + bytes / channels x channel + own bytes x copy

"Own bytes" are those of a ring's one primitive more than it has steps on a link: of n ranks, an all-gather
and a reduce-scatter run n of S/n, an all-reduce 2n - 1 (NCCL, ``src/device/all_gather.h``,
``reduce_scatter.h``, ``all_reduce.h``). In an exchange a rank copies its own part in the same kernel, whose
warps all peers share (``src/device/sendrecv.h``).

NCCL's own estimate is right for which algorithm and protocol is taken, and off by some 15 % for how long that
takes. Its choice gives the amounts on the right; the rates are fitted to measured times
(`studies.collectives.fit`) and come with `fitted.json`. Ring and exchange are those of Hockney's alpha-beta
model with the steps of Thakur et al., *Optimization of Collective Communication Operations in MPICH* (2005).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from devices.collectives.nccl.tuner import Choice
from sim.words.errors import InputError, UnknownNameError

__all__ = ["RATES", "amounts", "known_us", "load_rates", "taken_us"]

RATES: Final[Mapping[str, str]] = {
    "launch": "us of a ring, before its first step",
    "hop ll": "us of a step with protocol LL",
    "hop ll128": "us of a step with protocol LL128",
    "hop simple": "us of a step with protocol Simple",
    "start simple": "us that a ring with protocol Simple takes more",
    "channel ll": "us per KB that a channel sends with protocol LL",
    "channel ll128": "us per KB that a channel sends with protocol LL128",
    "channel simple": "us per KB that a channel sends with protocol Simple",
    "link ll": "us per KB that a GPU sends with protocol LL",
    "own": "us per KB of a rank's own part",
    "nvls start": "us of a reduction in the switch",
    "nvls first": "us per KB more, of the first 20 MB",
    "nvls": "us per KB that a GPU sends and receives in it",
    "exchange start ll": "us of messages to all peers with protocol LL",
    "exchange start simple": "us of messages to all peers with protocol Simple",
    "exchange peer": "us more of each peer",
    "exchange own": "us per KB that a rank copies for itself",
    "exchange channel ll": "us per KB that a channel sends with protocol LL",
    "exchange channel simple": "us per KB that a channel sends with protocol Simple",
    "exchange first": "us per KB more, of the first 20 MB",
    "exchange": "us per KB that a GPU sends to its peers, of LL twice",
}
"""What each rate is; KB are 1000 bytes."""

_FIRST_KB: Final = 20_000


def amounts(kind: str, ranks: int, nbytes: int, choice: Choice) -> dict[str, float]:
    """Return how much of what has a rate a collective needs.

    Raises
    ------
    InputError
        Nobody measured such a one.
    """
    if kind in ("broadcast", "reduce") or choice.algorithm not in ("ring", "nvls", "direct"):
        raise InputError(f"nobody measured a {kind} by {choice.algorithm}, so nothing is fitted to it")
    n, kb, protocol = ranks, nbytes / 1000, choice.protocol
    if choice.algorithm == "direct":
        peers, own = (n - 1, kb / n) if kind == "all_to_all" else (1, 0)
        sent = kb - own
        return {
            f"exchange start {protocol}": 1,
            "exchange peer": peers,
            "exchange own": own,
            f"exchange channel {protocol}": sent / choice.channels,
            "exchange first": sent / kb * min(kb, _FIRST_KB) if kb else 0,
            "exchange": sent * (2 if protocol == "ll" else 1),
        }
    if choice.algorithm == "nvls":
        both = 1 + 1 / n
        return {"nvls start": 1, "nvls first": both * min(kb, _FIRST_KB), "nvls": both * kb}
    rounds = 2 if kind == "all_reduce" else 1
    sent = rounds * (n - 1) / n * kb
    found = {
        "launch": 1,
        f"hop {protocol}": rounds * (n - 1),
        f"channel {protocol}": sent / choice.channels,
        "own": kb / n,
    }
    more = {"ll": {"link ll": sent}, "simple": {"start simple": 1.0}}
    return found | more.get(protocol, {})


def taken_us(kind: str, ranks: int, nbytes: int, choice: Choice, rates: Mapping[str, float]) -> float:
    """Return how long a collective takes by these rates."""
    return sum(amount * rates[name] for name, amount in amounts(kind, ranks, nbytes, choice).items())


def known_us(gpu: str, kind: str, per_node: Sequence[int], nbytes: int, choice: Choice) -> float:
    """Return the best that is known of how long a collective takes: by rates, or as NCCL expects.

    Parameters
    ----------
    gpu : str
        As in `devices.collectives.nccl.constants.GENERATIONS`.
    kind : str
    per_node : sequence of int
        Of each node: how many ranks it has. Rates hold in one node.
    nbytes : int
    choice : Choice
        What NCCL takes for it.

    Examples
    --------
    >>> from devices.collectives.nccl.constants import GENERATIONS
    >>> from devices.collectives.nccl.tuner import Tuner
    >>> choice = Tuner(GENERATIONS["h100"], (8, 8)).choose("all_reduce", 2**25)
    >>> known_us("h100", "all_reduce", (8, 8), 2**25, choice) == choice.estimate_us
    True
    """
    if len(per_node) == 1 and gpu in _fitted() and choice.algorithm != "none":
        with suppress(InputError):  # nobody measured such a one
            return taken_us(kind, sum(per_node), nbytes, choice, load_rates(gpu))
    return choice.estimate_us


@cache
def _fitted() -> dict[str, dict[str, float]]:
    data = json.loads(Path(__file__).with_name("fitted.json").read_text(encoding="utf-8"))
    return {name: each["rates"] for name, each in data["gpus"].items()}


def load_rates(gpu: str) -> Mapping[str, float]:
    """Return what was fitted to a node of eight GPUs: ``a100``, ``h100``, ``h200``.

    Raises
    ------
    UnknownNameError
        Nothing was fitted to that one.

    Examples
    --------
    >>> from devices.collectives.nccl.constants import GENERATIONS
    >>> from devices.collectives.nccl.tuner import Tuner
    >>> choice = Tuner(GENERATIONS["h100"], (8,)).choose("all_gather", 2**28)
    >>> 650 < taken_us("all_gather", 8, 2**28, choice, load_rates("h100")) < 800
    True
    """
    if gpu not in _fitted():
        raise UnknownNameError("fitted GPU", gpu, _fitted())
    return _fitted()[gpu]
