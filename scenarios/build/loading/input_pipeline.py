"""What input pipelines have in common: items that are read and loaded, a training loop, replicas, a machine.

::

    storage ──shared link──► loader0   load b                     how batches are made says the builder of
                             main0     next b ◄── when it is there    each kind of loader; the rest is here
                             gpu0      copy b │ train b │ all_reduce b

The script's thread, ``main``, asks for batch b once training step b - 1 - `run_ahead` is over, and gets it
when it is there. With `run_ahead` 0 it waits for every step, as a loop does that reads the loss; otherwise
the copy of one batch may hide behind the step on another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field

from devices.describe.field_types import Bandwidth, Bytes, Duration
from devices.describe.quantities import Count, Size, Whole
from scenarios.build.builder import Builder
from scenarios.fields.noise_fields import Spread
from sim.graph.builder import GraphBuilder, Ref
from sim.graph.graph import Graph
from sim.job.job import drawing
from sim.job.noise import lognormal
from sim.words.errors import InputError
from sim.words.limits import LATEST_NS, MOST_BUILT, MOST_TASKS, at_most

if TYPE_CHECKING:
    from sim.trace import Trace

__all__ = ["InputPipeline", "Replica"]

_AT_ONCE = 1_000_000
"""Items that are drawn at once."""

Durations = Annotated[
    list[Duration],
    BeforeValidator(lambda value: value if isinstance(value, list) else [value]),
    Field(min_length=1),
]


class InputPipeline(Builder):
    """Batches that are made for training steps on one or more replicas; extend it and override `batch`."""

    batches: Annotated[Size, Field(description="batches of an epoch, which is an iteration")]
    items: Annotated[Count, Field(description="items of a batch")] = 1
    load: Annotated[
        Durations, Field(description="time to load and transform an item; a list: of items in turn, repeated")
    ]
    jitter: Annotated[
        Spread, Field(description="standard deviation of the logarithm of each item's time; its mean stays")
    ] = 0.0
    size: Annotated[Bytes, Field(description="bytes of an item that are read from storage")] = 0
    size_jitter: Annotated[
        Spread, Field(description="standard deviation of the logarithm of each item's size; its mean stays")
    ] = 0.0
    seed: Annotated[Whole, Field(description="what items' times and sizes are drawn from")] = 0
    storage: Annotated[
        Bandwidth | None,
        Field(description="bandwidth of the storage, which all replicas share; default: unlimited"),
    ] = None
    copy_: Annotated[Duration, Field(alias="copy", description="time to copy a batch to the GPU")] = 0
    train: Annotated[Duration, Field(description="time of a training step")]
    run_ahead: Annotated[
        Whole, Field(description="steps that the script may be ahead of the GPU; 0: it waits for each")
    ] = 0
    replicas: Annotated[Size, Field(description="GPUs, each with a loader and a script of its own")] = 1
    all_reduce: Annotated[
        Duration | None,
        Field(description="time of the all-reduce after each step, for which the replicas meet"),
    ] = None

    def copies_aside(self) -> bool:
        """Return whether copies to the GPU are on a stream of their own."""
        return True

    def batch(self, of: Replica, b: int, ns: int, nbytes: int) -> list[Ref]:
        """Add what makes batch `b` ready for the script; return what ``next`` has to wait for.

        Parameters
        ----------
        of : Replica
        b : int
        ns, nbytes : int
            Time to load its items, and their size in storage.
        """
        raise InputError(f"{type(self).__name__} must define batch()")

    def loaders(self) -> Mapping[str, int]:
        """Return the devices of a replica that load, without its number, and their cores."""
        raise InputError(f"{type(self).__name__} must define loaders()")

    def ops_of_a_batch(self) -> int:
        """Return the most ops that a batch of a replica has."""
        return 10

    def graph(self) -> Graph:
        """Return one epoch of all replicas.

        Raises
        ------
        InputError
            More ops or items than can be made.
        """
        at_most(MOST_BUILT, self.replicas * self.batches * self.ops_of_a_batch(), "ops")
        builder = GraphBuilder(str(self.model_dump(include={"model"})["model"]))
        replicas = [Replica(self, builder, r) for r in range(self.replicas)]
        for of in replicas:
            for b, (ns, nbytes) in enumerate(zip(*self.drawn(of.number), strict=True)):
                of.train(b, self.batch(of, b, ns, nbytes))
        return builder.build()

    def drawn(self, replica: int) -> tuple[list[int], list[int]]:
        """Return the time and the size of each batch of a replica: sums over its items.

        Examples
        --------
        >>> from scenarios.build.loading.data_loader import DataLoaderFields
        >>> sizes = {"items": 3, "load": ["1ns", "5ns"], "size": "4B", "train": "1ns", "num_workers": 1}
        >>> DataLoaderFields(model="data-loader", batches=3, **sizes).drawn(0)
        ([7, 11, 7], [12, 12, 12])
        """
        at_most(MOST_TASKS, self.batches * self.items, "items")
        ns = self._sums("times", replica, self.load, self.jitter)
        if not self.size:
            return ns, [0] * self.batches
        return ns, self._sums("sizes", replica, [self.size], self.size_jitter)

    def _sums(self, what: str, replica: int, mean: Sequence[int], sigma: float) -> list[int]:
        """Return the sum over the items of each batch of what is drawn about `mean`, which repeats."""
        rng = drawing(f"{what} of items", self.seed + replica * 2**64)
        every, at_once = np.array(mean, np.int64), max(1, _AT_ONCE // self.items)
        sums: list[int] = []
        for first in range(0, self.batches, at_once):
            n = min(at_once, self.batches - first)
            items = every[np.arange(first * self.items, (first + n) * self.items) % len(every)]
            drawn = np.floor(items * lognormal(sigma, items.shape, rng) + 0.5) if sigma else items
            each = drawn.reshape(n, self.items)
            if each.sum(axis=1, dtype=float).max() > LATEST_NS:
                raise InputError("the items of a batch are too much: times end at 146 years", path=("items",))
            sums += each.astype(np.int64).sum(axis=1).tolist()
        return sums

    def loading(self) -> Mapping[str, int]:
        """Return who loads, and how many batches it makes at once; the script's thread is ``main``."""
        raise InputError(f"{type(self).__name__} must define loading()")

    def report(self, trace: Trace) -> dict[str, Any]:
        """Return how long a step takes in the steady state, and what limits it."""
        from scenarios.build.loading.loading_limit import loading_report

        gpu = ["train", "all_reduce"]
        shares: dict[str, tuple[list[str], int]] = {}
        if self.run_ahead and self.copies_aside():
            shares["copy"] = (["copy"], 1)
        else:
            gpu.insert(0, "copy")
        loads = ["read", "load"]
        (who, at_once), *_ = self.loading().items()
        if who != "main":
            shares |= {who: (loads, at_once), "pin thread": (["pin_memory"], 1)}
        elif self.run_ahead:
            shares[who] = ([*loads, "pin_memory"], 1)
        else:
            gpu = [*loads, "pin_memory", *gpu]
        shares["training loop"] = (gpu, 1)
        return loading_report(trace, shares, self.batches, self.replicas)

    def default_policy(self) -> Mapping[str, Any]:
        """Return a queue, with copies on the stream that is theirs."""
        return {"name": "ready-queue", "streams": "recorded"}

    def default_machine(self) -> Mapping[str, Any]:
        """Return loaders, a thread and a GPU for each replica, and the storage, on a link that they share."""
        devices: dict[str, Any] = {"storage": {"kind": "cpu"}} if self.size else {}
        if self.size:
            devices["network"] = {"kind": "switch"}
        for r in range(self.replicas):
            for name, cores in self.loaders().items():
                devices[f"{name}{r}"] = {"kind": "cpu", "cores": cores}
            devices[f"main{r}"] = {"kind": "cpu"}
            devices[f"gpu{r}"] = {"kind": "gpu", "streams": 2}
        if not self.size:
            return {"devices": devices}
        limit = {} if self.storage is None else {"bandwidth": f"{self.storage}B/s"}
        links = [{"from": "storage", "to": "network", "sharing": "shared", "duplex": False, **limit}]
        for name in dict.fromkeys([*self.loaders(), "main"]):
            to_all = {"from": "network", "to": f"{name}*", "sharing": "independent", "duplex": False}
            links.append(to_all)
        return {"devices": devices, "links": links}


class Replica:
    """One replica of a pipeline while its graph is made.

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
        waits = pipeline.batches - 1 - pipeline.run_ahead  # the last step that the epoch's end waits for
        over: list[Ref] = [(self.named("next", pipeline.batches - 1), 1)]
        if waits >= 0:
            over.append((self.named(self.last, waits), 1))
        self.epoch = self.op("main", "epoch", None, 0, after=over)

    def named(self, kind: str, b: int | None) -> str:
        """Return what an op is called."""
        return f"{self.prefix}{kind}{'' if b is None else b}"

    def op(
        self, place: str, name: str, b: int | None, ns: int, *, kind: str | None = None, **more: Any
    ) -> str:
        """Add an op on a device of this replica; return its name."""
        device = "storage" if place == "storage" else f"{place}{self.number}"
        called = self.named(name, b)
        return self.builder.op(called, kind=kind or name, duration_ns=ns, device=device, **more)

    def step_before(self, b: int) -> list[Ref]:
        """Return the step that has to be over when the script asks for batch `b`."""
        step = b - 1 - self.pipeline.run_ahead
        return [self.named(self.last, step)] if step >= 0 else [self.epoch]

    def load(
        self,
        place: str,
        b: int,
        ns: int,
        nbytes: int,
        after: Sequence[Ref],
        request: str = "request",
        **more: Any,
    ) -> str:
        """Add the loading of batch `b` once `after` is over; it is read from storage if it has a size."""
        if not nbytes:
            return self.op(place, "load", b, ns, after=after, **more)
        asked = self.op(place, "request", b, 0, kind=request, after=after, **more)
        read = self.op("storage", "read", b, 0, after=[asked], outputs=nbytes)
        return self.op(place, "load", b, ns, inputs=[read], after=[asked], **more)

    def next(self, b: int, ready: Sequence[Ref], kind: str = "next", **more: Any) -> str:
        """Add what gives batch `b` to the script once `ready` is over, and it has asked."""
        before = [self.named("next", b - 1)] if b else []
        after = list(dict.fromkeys([*ready, *before, *self.step_before(b)]))
        return self.op("main", "next", b, 0, kind=kind, after=after, **more)

    def train(self, b: int, ready: Sequence[Ref]) -> None:
        """Add the copy of batch `b`, the step on it, and the all-reduce."""
        of = self.pipeline

        def on_gpu(name: str, ns: int, after: Sequence[Ref], stream: int, **attributes: Any) -> str:
            return self.op("gpu", name, b, ns, after=after, attributes={"stream": stream, **attributes})

        after, aside = list(ready), of.copies_aside()
        before: Ref = self.named(self.last, b - 1) if b else (self.named(self.last, of.batches - 1), 1)
        if of.copy_:
            after = [on_gpu("copy", of.copy_, after if aside else [*after, before], int(aside))]
        done = on_gpu("train", of.train, [*after, before], 0)
        if of.all_reduce is not None:
            on_gpu("all_reduce", of.all_reduce, [done], 0, communicator="replicas")
