"""Costs of ops: their durations on a device, what may be known of these, and the cost of issuing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from sim.base.arrays import UNSET, IntArray
from sim.base.errors import InputError
from sim.base.options import whole_numbers
from sim.graph.frames import CONTROL_FLOW_KINDS
from sim.graph.graph import Graph
from sim.graph.views import FREE, VIEWS
from sim.job.job import Job
from sim.machine.device import Device
from sim.machine.machine import Machine

_T = TypeVar("_T")

MOVES_NOTHING: Final = tuple(kind for kind in VIEWS if kind != "dropout")
"""Views take no time, whatever a cost model says of their bytes; dropout is a view only at inference."""


_MAX_CACHED: Final = 16
"""Answers kept per question and graph: a sweep may describe a device in thousands of ways."""

_ANSWERS: WeakKeyDictionary[Graph, dict[str, list[tuple[Device, Any]]]] = WeakKeyDictionary()


def ask_once(graph: Graph, device: Device, question: str, ask: Callable[[], _T]) -> _T:
    """Return the cost model's answer for a graph on a device; devices that cost the same share one answer.

    Parameters
    ----------
    graph : Graph
    device : Device
    question : str
        ``"duration"``, ``"spread"``, ...
    ask : callable
        Asks the model. The result is shared by all callers: copy it before changing it.
    """
    answers = _ANSWERS.setdefault(graph, {}).setdefault(question, [])
    for other, cached in answers:
        if other is device or cost_the_same(other, device):
            answer: _T = cached
            return answer
    answer = ask()
    answers[:] = [*answers[1 - _MAX_CACHED :], (device, answer)]
    return answer


def costs_ns(graph: Graph, device: Device) -> IntArray:
    """Return the duration of each op on `device`; -1 where it cannot run there.

    An explicit duration for the device's name wins over one for its kind, that over one for all devices, and
    that over the device's cost model. An op without any of them, on a device without a cost model, takes
    no time if its kind does no work (`FREE`) or it is a collective; otherwise the device cannot time it and
    -1 is returned.

    Parameters
    ----------
    graph : Graph
    device : Device

    Returns
    -------
    array of int64
        One duration per op in ns.
    """
    ns = graph.given_ns(device.kind, device.name).copy()
    missing = ns == UNSET
    if missing.any():
        if device.cost is not None:
            views = missing & graph.is_kind(*MOVES_NOTHING) & (graph.flops == 0)
            ns, missing = np.where(views, 0, ns), missing & ~views
            ns = np.where(missing, ask_once(graph, device, "duration", lambda: _model_ns(graph, device)), ns)
        else:
            only_here = np.zeros(len(graph), dtype=bool)  # durations for other kinds of device only
            for other in graph.duration_by_kind.values():
                only_here |= other != UNSET
            free = graph.is_kind(*FREE)
            free[[*graph.attribute("communicator")]] = True  # timed by the links, or instant without links
            ns = np.where(missing & ~only_here & free & (graph.flops == 0), 0, ns)
    if device.kinds is not None:
        ns = np.where(graph.is_kind(*device.kinds), ns, UNSET)
    return ns


def _model_ns(graph: Graph, device: Device) -> IntArray:
    assert device.cost is not None
    source = f"{type(device.cost).__name__}.durations_ns"
    answer = device.cost.durations_ns(graph, device)
    return whole_numbers(answer, source, len(graph), least=UNSET, of=graph.op_names)


def cost_the_same(one: Device, other: Device) -> bool:
    """Whether two devices cost the same."""
    if (one.kind, one.kinds) != (other.kind, other.kinds):
        return False
    if one.cost is None and other.cost is None:
        return True
    by_description = one.cost is not None and not one.cost.by_name and one.cost == other.cost
    return by_description and _described(one) == _described(other)


_described: Final = attrgetter("cores", "cores_per_op", "details")
"""The properties of a device that a cost model reads, besides its kind."""


def known_costs(
    knowledge: str,
    graph: Graph,
    cost_ns: Sequence[IntArray],
    rng: Callable[[], np.random.Generator],
    error: float,
) -> Sequence[IntArray]:
    """Return what may be known of the costs of each op on each device, by the scenario's ``knowledge``.

    ::

        exact      the true costs, without noise
        mean       the mean over all ops of the kind, on the device
        estimate   off by a factor drawn for each op, the same on every device
        none       1 ns for every op

    It is known before ops are placed, so it covers every device: a placement sees all columns, and a policy
    sees for each op the entry of its device.

    Parameters
    ----------
    knowledge : str
        ``exact``, ``mean``, ``estimate`` or ``none``.
    graph : Graph
    cost_ns : sequence of array of int64
        ``cost_ns[d][op]``, -1 where device d cannot run op: this much is always known.
    rng : callable
        Returns the generator that draws the factors of ``estimate``.
    error : float
        Standard deviation of the logarithm of these factors.

    Raises
    ------
    InputError
        An unknown word, or a negative deviation.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("three")
    >>> for name in "abc":
    ...     _ = b.op(name, kind="matmul" if name < "c" else "add")
    >>> on_gpu = np.array([10, 15, -1])
    >>> rng = np.random.default_rng
    >>> [known_costs(k, b.build(), [on_gpu], rng, 0.2)[0].tolist() for k in ("mean", "none")]
    [[13, 13, -1], [1, 1, -1]]
    """
    if knowledge == "exact":
        return cost_ns
    if knowledge == "estimate":
        from sim.job.noise import Noise, lognormal

        factor = lognormal(Noise(sigma=error).sigma, (len(graph),), rng())  # a negative one is refused

        def as_known(ns: IntArray) -> IntArray:
            return np.floor(ns * factor + 0.5).astype(np.int64)

    elif knowledge == "none":

        def as_known(ns: IntArray) -> IntArray:
            return np.ones_like(ns)

    elif knowledge == "mean":

        def as_known(ns: IntArray) -> IntArray:
            timed = ns != UNSET
            total = np.bincount(graph.kind_code, weights=np.where(timed, ns, 0))
            count = np.bincount(graph.kind_code, weights=timed)
            mean: IntArray = np.floor(total / np.maximum(count, 1) + 0.5).astype(np.int64)
            return mean[graph.kind_code]

    else:
        raise InputError(f"knowledge must be exact, mean, estimate or none; found {knowledge!r}")
    by_column = {id(ns): np.where(ns == UNSET, UNSET, as_known(ns)) for ns in cost_ns}
    return [by_column[id(ns)] for ns in cost_ns]


def issue_costs_by_kind(graph: Graph, machine: Machine) -> IntArray:
    """Return the cost of issuing, in ns: one row per device, one column per kind of op in the graph."""

    def cost(device: Device, kind: str) -> int:
        jumps = kind in CONTROL_FLOW_KINDS and not device.workers  # its host launches nothing
        return device.issue_ns_by_kind.get(kind, 0 if jumps else device.issue_ns)

    rows = [[cost(device, kind) for kind in graph.kinds] for device in machine.devices]
    return np.array(rows).reshape(len(rows), -1)


def issue_costs_ns(job: Job) -> IntArray:
    """Return the cost to its issuer of issuing each op, in ns.

    Parameters
    ----------
    job : Job

    Returns
    -------
    array of int64
        The costs of the job (`Job.issue_ns`) if given; else `Device.issue_ns_by_kind` for the op's kind where
        given, and `Device.issue_ns` for the rest, except control flow. The op that begins a batch of a
        session (attribute ``begins_batch``) is not launched by anything and costs nothing.
    """
    if job.issue_ns is not None:
        return job.issue_ns.copy()
    costs = issue_costs_by_kind(job.graph, job.machine)[job.device_of, job.graph.kind_code]
    costs[[*job.graph.attribute("begins_batch")]] = 0
    return costs
