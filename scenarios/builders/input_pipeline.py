"""Common parts of input pipelines: items read and loaded, a training loop, replicas, a machine.

::

    storage ──shared link──► loader0   load b                     the builder of each kind of loader says
                             main0     next b ◄── when ready        how batches are made; the rest is here
                             gpu0      copy b │ train b │ all_reduce b

The script's thread, ``main``, asks for batch b once training step b - `in_flight` is over, and gets it
when it is ready. With `in_flight` 1 it waits for every step, like a loop that reads the loss; otherwise
the copy of one batch may overlap the step on another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from devices.describe.field_types import Bandwidth, Bytes, Duration
from devices.describe.quantities import Count, Shorthand, Size, Whole
from scenarios.builders.builder import Builder
from scenarios.fields.policy_fields import Spread
from sim.base.arrays import LATEST_NS, MOST_BUILT, MOST_TASKS, at_most
from sim.base.errors import InputError
from sim.base.units import NS_PER_S, format_duration
from sim.explain.communication import transfers_on_links
from sim.graph.builder import GraphBuilder, Ref
from sim.graph.graph import Graph
from sim.job.job import drawing
from sim.job.noise import lognormal
from sim.trace import Trace

# ----------------------------------------------------------------------------------------------------------
# What limits a training loop with an input pipeline: the resource that needs the most time per step.
#
#     storage         bytes per step of all replicas / bandwidth of the busiest link     2.0 ms
#     workers         (reading alone and loading) / workers                              6.3 ms  ◄── the limit
#     pin thread      pinning                                                            0.5 ms
#     copy            copying                                                            1.0 ms
#     training loop   the step, and the all-reduce after it                              4.0 ms
#
# Each works on the next batch while the others work, so in the steady state no step is shorter than the
# slowest needs. Serial work counts together: loading and training without workers, copying and training in
# a script that waits for its steps; its longest part gives the name. The busiest replica counts. A step may
# take longer: workers that read at the same time also load at the same time, and nobody reads meanwhile.

Shares = Mapping[str, tuple[Sequence[str], int]]
"""Resource → the op kinds that it executes, and how many at once."""

_LIMIT_NAMES = {
    "read": "storage",
    "load": "main process",  # which loads by itself if there are no workers
    "pin_memory": "pin thread",
    "copy": "copy",
    "train": "training step",
    "all_reduce": "all-reduce",
}
"""Op kind → name of the limit that it forms."""


def loading_report(trace: Trace, shares: Shares, steps: int, replicas: int) -> dict[str, Any]:
    """Return the additional keys of the summary of a run: ``data_loading``.

    Parameters
    ----------
    trace : Trace
    shares : Shares
    steps : int
        Steps of each replica, in each epoch.
    replicas : int
    """
    if not (n := steps * trace.steps_done):
        return {}  # a failure of the machine left no epoch whole
    needs = _busy_ns(trace, replicas)
    reading, storage = _reading_ns(trace, replicas)
    needs["read"] = reading
    step_ns: dict[str, float] = {}
    largest: dict[str, str] = {}
    for resource, (kinds, at_once) in shares.items():
        parts = {kind: needs[kind] for kind in kinds if kind in needs}
        if parts:
            total = sum(parts.values()) / at_once / n
            busiest = int(np.argmax(total))
            step_ns[resource] = float(total[busiest])
            largest[resource] = max(parts, key=lambda kind: parts[kind][busiest])
    if storage:
        step_ns["storage"], largest["storage"] = storage / n, "read"
    limit = max(step_ns, key=lambda resource: step_ns[resource])
    name = "workers" if limit == "workers" else _LIMIT_NAMES[largest[limit]]
    return {
        "data_loading": {
            "steps": n,
            "replicas": replicas,
            "steady_step_ns": _steady_ns(trace),
            "limit": name,
            "limit_step_ns": round(step_ns[limit]),
            "most_waiting": _most_waiting(trace),
            "needs_ns": {resource: round(ns) for resource, ns in step_ns.items() if ns},
        }
    }


def limit_line(report: Mapping[str, Any]) -> str:
    """Return what a report says, as two lines of text.

    Examples
    --------
    >>> report = {"steady_step_ns": 7000, "limit": "workers", "limit_step_ns": 6900, "most_waiting": 2}
    >>> print(limit_line({**report, "needs_ns": {"training loop": 4000, "workers": 6900}}))
    A step every 7 us in the steady state, limited by the workers: workers 6.9 us, training loop 4 us.
    Batches made and not wanted yet: at most 2.
    """
    needs = sorted(report["needs_ns"].items(), key=lambda need: -need[1])
    terms = ", ".join(f"{resource} {format_duration(ns)}" for resource, ns in needs)
    step_time = format_duration(report["steady_step_ns"])
    return (
        f"A step every {step_time} in the steady state, limited by the {report['limit']}: {terms}.\n"
        f"Batches made and not wanted yet: at most {report['most_waiting']}."
    )


def _busy_ns(trace: Trace, replicas: int) -> dict[str, Any]:
    """Return, for each op kind, the total duration of its ops on each replica."""
    job, op = trace.job, trace.tasks["op"]
    task_ns = job.task_ns(op, trace.tasks["iteration"])
    replica = _replica_of_device(trace)[trace.device]
    needs = {}
    for kind in ("load", "pin_memory", "copy", "train", "all_reduce"):
        rows = _counted_rows(trace, kind)
        if len(rows):
            needs[kind] = np.bincount(replica[rows], weights=task_ns[rows], minlength=replicas)
    return needs


def _counted_rows(trace: Trace, *kinds: str) -> Any:
    """Return the tasks of some kinds, in the epochs that count."""
    tasks = trace.tasks
    return np.flatnonzero(trace.job.graph.is_kind(*kinds)[tasks["op"]] & trace.counts[tasks["iteration"]])


def _replica_of_device(trace: Trace) -> Any:
    """Return the number at the end of each device's name, or 0 if there is none."""
    names = [device.name for device in trace.job.machine.devices]
    digits = [name[len(name.rstrip("0123456789")) :] for name in names]
    return np.array([int(number or 0) for number in digits])


def _reading_ns(trace: Trace, replicas: int) -> tuple[Any, float]:
    """Return the reading time of each replica if it read alone, and that of the busiest link, in ns."""
    job, moved = trace.job, trace.transfers
    alone_ns = np.zeros(replicas)
    row, link = transfers_on_links(trace)
    counts = trace.counts[moved["iteration"][row]]
    row, link = row[counts], link[counts]
    if not len(row):
        return alone_ns, 0.0
    nbytes = moved["nbytes"]
    rates = np.array([connection.bandwidth_bytes_per_s or np.inf for connection in job.machine.links])
    latency = np.array([connection.latency_ns for connection in job.machine.links])
    slowest, waits = np.full(len(nbytes), np.inf), np.zeros(len(nbytes))
    np.minimum.at(slowest, row, rates[link])
    np.add.at(waits, row, latency[link])
    np.add.at(alone_ns, _replica_of_device(trace)[moved["destination"]], nbytes / slowest * NS_PER_S + waits)
    busiest = np.bincount(link, weights=nbytes[row], minlength=len(rates)) / rates
    return alone_ns, float(busiest.max() * NS_PER_S)


def _most_waiting(trace: Trace) -> int:
    """Return the most batches of a replica that were ready but not yet given to the script."""
    graph = trace.job.graph
    last_kind = next(kind for kind in ("push", "pin_memory", "load") if graph.is_kind(kind).any())
    arrivals, departures = _counted_rows(trace, last_kind), _counted_rows(trace, "next", "next_that_came")
    rows = np.concatenate([arrivals, departures])
    change = np.repeat([1, -1], [len(arrivals), len(departures)])
    end_ns = trace.tasks["end_ns"][rows]
    replica = _replica_of_device(trace)[trace.device[rows]]
    order = np.lexsort((change, end_ns, replica))  # a batch given out at once does not wait
    return int(np.cumsum(change[order]).max())


def _steady_ns(trace: Trace) -> int:
    """Return the time per step in the middle half of the run, on the device that finishes last."""
    train = _counted_rows(trace, "train")
    device, end = trace.device[train], trace.tasks["end_ns"][train]
    last = np.sort(end[device == device[np.argmax(end)]])
    quarter = len(last) // 4
    if not quarter:
        return round(int(last[-1]) / len(last))
    return round(int(last[-1 - quarter] - last[quarter - 1]) / (len(last) - 2 * quarter))


# ----------------------------------------------------------------------------------------------------------

_ITEMS_AT_ONCE = 1_000_000
"""Number of items drawn at once."""
_MAX_OPS = 10
"""Maximum number of ops per batch and replica."""

Durations = Annotated[
    list[Duration],
    BeforeValidator(lambda value: value if isinstance(value, list) else [value]),
    Field(min_length=1),
]


class InputPipeline(Builder):
    """Batches made for training steps on one or more replicas; extend it and override `batch`.

    Attributes
    ----------
    steps
        of an epoch, which is an iteration; each takes a batch
    batch
        items of a batch
    load
        time to load and transform an item; a list: of items in turn, repeated
    jitter
        standard deviation of the logarithm of each item's time, and size; their means stay
    size
        bytes of an item that are read from storage
    seed
        what items' times and sizes are drawn from
    bandwidth
        of the storage, which all replicas share; default: unlimited
    transfer
        time to copy a batch to the GPU
    train
        time of a training step
    in_flight
        steps that may be under way; 1: the script waits for each
    replicas
        GPUs, each with a loader and a script of its own
    all_reduce
        time of the all-reduce after each step, for which the replicas meet
    """

    steps: Size
    batch: Count = 1
    load: Durations
    jitter: Annotated[dict[Literal["load", "size"], Spread], Shorthand("load", {"type": "number"})] = Field(
        default_factory=dict
    )
    size: Bytes = 0
    seed: Whole = 0
    bandwidth: Bandwidth | None = None
    transfer: Duration = 0
    train: Duration
    in_flight: Size = 1
    replicas: Size = 1
    all_reduce: Duration | None = None

    @property
    def start_ns(self) -> int:
        """Time that the script waits at the beginning of an epoch for the loaders to start."""
        return 0

    def copies_aside(self) -> bool:
        """Whether copies to the GPU have a stream of their own."""
        return True

    def make_batch(self, replica: Replica, b: int, ns: int, nbytes: int) -> list[Ref]:
        """Add the ops that make batch `b` ready for the script; return what ``next`` has to wait for.

        Parameters
        ----------
        replica : Replica
        b : int
        ns, nbytes : int
            Time to load its items, and their size in storage.
        """
        raise InputError(f"{type(self).__name__} must define make_batch()")

    def loaders(self) -> Mapping[str, int]:
        """Return the loading devices of a replica, without its number, and their cores."""
        raise InputError(f"{type(self).__name__} must define loaders()")

    def graph(self) -> Graph:
        """Return one epoch of all replicas.

        Raises
        ------
        InputError
            There are more ops or items than can be made.
        """
        at_most(MOST_BUILT, self.replicas * self.steps * _MAX_OPS, "ops")
        builder = GraphBuilder(str(self.model_dump(include={"model"})["model"]))
        replicas = [Replica(self, builder, r) for r in range(self.replicas)]
        for replica in replicas:
            for b, (ns, nbytes) in enumerate(zip(*self.draw_batches(replica.number), strict=True)):
                replica.train(b, self.make_batch(replica, b, ns, nbytes))
        return builder.build()

    def draw_batches(self, replica: int) -> tuple[list[int], list[int]]:
        """Return the time and the size of each batch of a replica: sums over its items.

        Examples
        --------
        >>> from scenarios.builders.data_loaders import DataLoaderFields
        >>> sizes = {"batch": 3, "load": ["1ns", "5ns"], "size": "4B", "train": "1ns", "workers": 1}
        >>> DataLoaderFields(model="data-loader", steps=3, **sizes).draw_batches(0)
        ([7, 11, 7], [12, 12, 12])
        """
        at_most(MOST_TASKS, self.steps * self.batch, "items")
        ns = self._draw_sums("times", replica, self.load, self.jitter.get("load", 0.0))
        if not self.size:
            return ns, [0] * self.steps
        return ns, self._draw_sums("sizes", replica, [self.size], self.jitter.get("size", 0.0))

    def _draw_sums(self, quantity: str, replica: int, mean: Sequence[int], sigma: float) -> list[int]:
        """Return the sum over each batch of items drawn around `mean`, which repeats."""
        rng = drawing(f"{quantity} of items", self.seed + replica * 2**64)
        pattern, at_once = np.array(mean, np.int64), max(1, _ITEMS_AT_ONCE // self.batch)
        sums: list[int] = []
        for first in range(0, self.steps, at_once):
            n = min(at_once, self.steps - first)
            items = pattern[np.arange(first * self.batch, (first + n) * self.batch) % len(pattern)]
            drawn = np.floor(items * lognormal(sigma, items.shape, rng) + 0.5) if sigma else items
            batches = drawn.reshape(n, self.batch)
            if batches.sum(axis=1, dtype=float).max() > LATEST_NS:
                raise InputError("the items of a batch are too much: times end at 146 years", path=("batch",))
            sums += batches.astype(np.int64).sum(axis=1).tolist()
        return sums

    def report(self, trace: Trace) -> dict[str, Any]:
        """Return the time per step in the steady state, and what limits it."""
        gpu = ["train", "all_reduce"]
        shares: dict[str, tuple[list[str], int]] = {}
        if self.in_flight > 1 and self.copies_aside():
            shares["copy"] = (["copy"], 1)
        else:
            gpu.insert(0, "copy")
        loads = ["read", "load"]
        if loaders := self.loaders():  # otherwise the script loads by itself
            at_once = loaders.get("loader", 1)
            threads = [d.cores for d in trace.job.machine.devices if d.name.startswith("loader") and d.cores]
            at_once = min([at_once, *threads])  # a pool of the user's may be smaller
            shares |= {"workers": (loads, at_once), "pin thread": (["pin_memory"], 1)}
        elif self.in_flight > 1:
            shares["main"] = ([*loads, "pin_memory"], 1)
        else:
            gpu = [*loads, "pin_memory", *gpu]
        shares["training loop"] = (gpu, 1)
        return loading_report(trace, shares, self.steps, self.replicas)

    def default_policy(self) -> Mapping[str, Any]:
        """Return a ready queue, with copies on their own stream."""
        return {"name": "ready-queue", "streams": "recorded"}

    def default_machine(self) -> Mapping[str, Any]:
        """Return loaders, a thread and a GPU for each replica, and storage, on a link that they share."""
        read = {"storage": {"kind": "cpu"}, "network": {"kind": "switch"}}
        devices: dict[str, Any] = read if self.size else {}
        for r in range(self.replicas):
            for name, cores in self.loaders().items():
                devices[f"{name}{r}"] = {"kind": "cpu", "cores": cores}
            devices[f"main{r}"] = {"kind": "cpu"}
            devices[f"gpu{r}"] = {"kind": "gpu", "streams": 2}
        if not self.size:
            return {"devices": devices}
        limit = {} if self.bandwidth is None else {"bandwidth": f"{self.bandwidth}B/s"}
        links = [{"from": "storage", "to": "network", "sharing": "shared", "duplex": False, **limit}]
        links += [
            {"from": "network", "to": f"{name}*", "sharing": "independent", "duplex": False}
            for name in dict.fromkeys([*self.loaders(), "main"])
        ]
        return {"devices": devices, "links": links}


class Replica:
    """A replica of a pipeline while its graph is made.

    Parameters
    ----------
    pipeline : InputPipeline
    builder : GraphBuilder
    number : int
    """

    def __init__(self, pipeline: InputPipeline, builder: GraphBuilder, number: int) -> None:
        self.pipeline, self.builder, self.number = pipeline, builder, number
        self.prefix = "" if pipeline.replicas == 1 else f"{number}/"
        self.last = "train" if pipeline.all_reduce is None else "all_reduce"
        after: list[Ref] = [(self.name_op("next", pipeline.steps - 1), 1), self._step(-pipeline.in_flight)]
        self.epoch = self.op("main", "epoch", None, pipeline.start_ns, after=after)

    def name_op(self, kind: str, b: int | None) -> str:
        """Return the name of an op."""
        return f"{self.prefix}{kind}{'' if b is None else b}"

    def op(
        self, role: str, name: str, b: int | None, ns: int, *, kind: str | None = None, **more: Any
    ) -> str:
        """Add an op on a device of this replica; return its name."""
        device = "storage" if role == "storage" else f"{role}{self.number}"
        full_name = self.name_op(name, b)
        return self.builder.op(full_name, kind=kind or name, duration_ns=ns, device=device, **more)

    def step_before(self, b: int) -> list[Ref]:
        """Return the step that has to be over before the script asks for batch `b`."""
        return [self._step(b - self.pipeline.in_flight)] if b else [self.epoch]

    def _step(self, step: int) -> Ref:
        """Return a step of this epoch; negative steps belong to earlier epochs."""
        epochs, b = divmod(step, self.pipeline.steps)
        return (self.name_op(self.last, b), -epochs) if epochs else self.name_op(self.last, b)

    def load(
        self,
        role: str,
        b: int,
        ns: int,
        nbytes: int,
        after: Sequence[Ref],
        request: str = "request",
        **more: Any,
    ) -> str:
        """Add the loading of batch `b` once `after` is over; it is read from storage if it has a size."""
        if not nbytes:
            return self.op(role, "load", b, ns, after=after, **more)
        requested = self.op(role, "request", b, 0, kind=request, after=after, **more)
        read = self.op("storage", "read", b, 0, after=[requested], outputs=nbytes)
        return self.op(role, "load", b, ns, inputs=[read], after=[requested], **more)

    def next(self, b: int, ready: Sequence[Ref], kind: str = "next", **more: Any) -> str:
        """Add the op that gives batch `b` to the script, once `ready` is over and the script has asked."""
        before = [self.name_op("next", b - 1)] if b else []
        after = list(dict.fromkeys([*ready, *before, *self.step_before(b)]))
        return self.op("main", "next", b, 0, kind=kind, after=after, **more)

    def train(self, b: int, ready: Sequence[Ref]) -> None:
        """Add the copy of batch `b`, the step on it, and the all-reduce."""
        pipeline = self.pipeline

        def on_gpu(name: str, ns: int, after: Sequence[Ref], stream: int, **attributes: Any) -> str:
            return self.op("gpu", name, b, ns, after=after, attributes={"stream": stream, **attributes})

        after, overlap = list(ready), pipeline.copies_aside()
        before = self._step(b - 1)
        if pipeline.transfer:
            after = [on_gpu("copy", pipeline.transfer, after if overlap else [*after, before], int(overlap))]
        done = on_gpu("train", pipeline.train, [*after, before], 0)
        if pipeline.all_reduce is not None:
            on_gpu("all_reduce", pipeline.all_reduce, [done], 0, communicator="replicas")
