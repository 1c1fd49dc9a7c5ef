"""An input pipeline: load, preprocess, copy, train, a batch an iteration.

::

    prefetch 0    load 0 │ prep 0 │ train 0 │ load 1 │ prep 1 │ train 1 │      one after another
    prefetch 1    load 0 │ prep 0 │ train 0 │ ....
                                  │ load 1 │ prep 1 │ train 1 │            1 is begun when 0 is taken
    prefetch 2    load 0 │ prep 0 │ train 0 │ train 1 │
                         │ load 1 │ prep 1  │                                  two are begun and not taken

A batch is *taken* when the training step on it begins. Up to `prefetch` batches may be begun and not taken
yet; a producer that is so far ahead waits. With 0 nothing is made ahead, which is the synchronous loop.
Beyond that every stage goes on with the next batch as soon as it may: `workers` of a stage work on
different batches. (`torch.utils.data.DataLoader` bounds the batches under way so, at ``num_workers *
prefetch_factor``; ``tf.data``'s ``prefetch(d)``, whose only producer is one thread, has the same effect.)

The graph is one iteration, and edges with a distance tie the iterations together (`sim.GraphBuilder`)::

    load ──► preprocess ──► copy ──► take ──► train          train ──1──► take
     ▲                                │
     └────────── distance d ──────────┘

A copy from pageable memory waits for the training step before it, as it goes through the GPU's only
queue; one from pinned memory is on a stream of its own (attribute ``stream``, which the stream
assignment `policies.streams.recorded` follows) and overlaps with training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from devices.describe.field_types import Bytes, Duration
from devices.describe.quantities import Size, Whole
from scenarios.build.builder import Builder
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph

__all__ = ["DataLoadingFields"]


class DataLoadingFields(Builder):
    """An input pipeline: load and preprocess on a CPU, copy and train on GPUs, a batch an iteration."""

    model: Annotated[Literal["data-loading"], Field(description="which builder")]
    load: Duration
    preprocess: Duration = 0
    copy_: Annotated[
        Duration,
        Field(
            alias="copy",
            description="time to copy a batch to the GPU; default: what the machine's links take",
        ),
    ] = 0
    train: Duration
    batch: Annotated[Bytes, Field(description="size of a batch")] = 0
    prefetch: Annotated[
        Whole, Field(description="batches begun before the training step takes them; 0: synchronous")
    ] = 0
    workers: Annotated[Size, Field(description="batches that load and preprocess each work on at once")] = 1
    pinned: Annotated[bool, Field(description="copy on a stream of its own")] = True
    replicas: Annotated[Size, Field(description="number of GPUs that share each batch")] = 1
    all_reduce: Annotated[
        Duration, Field(description="time of the all-reduce among the replicas after a step")
    ] = 0

    def graph(self) -> Graph:
        """Return one iteration, tied to those before it.

        Ops are ``load`` and ``preprocess`` on a CPU and, of each replica, ``copy``, ``take``, ``train`` and
        ``all_reduce`` (with ``/0``, ``/1``, ... when there are several).

        Examples
        --------
        >>> sizes = {"load": "2ns", "preprocess": "3ns", "train": "4ns", "prefetch": 2}
        >>> DataLoadingFields(model="data-loading", **sizes).graph().op_names
        ['load', 'preprocess', 'take', 'train']
        """
        builder = GraphBuilder("data loading")

        def op(
            name: str, device: str, ns: int, stream: int | None = None, together: str = "", **edges: Any
        ) -> str:
            attributes: dict[str, Any] = {"communicator": together} if together else {}
            kind = name.partition("/")[0]
            attributes |= {} if stream is None else {"stream": stream}
            return builder.op(name, kind=kind, duration_ns=ns, device=device, attributes=attributes, **edges)

        replicas = [""] if self.replicas == 1 else [f"/{r}" for r in range(self.replicas)]
        gpus = ["gpu"] if self.replicas == 1 else [f"gpu{r}" for r in range(self.replicas)]
        last = "all_reduce" if self.all_reduce else "train"
        # what tells that one more batch may be begun
        free = [(f"take{r}", self.prefetch) if self.prefetch else (f"{last}{r}", 1) for r in replicas]
        op("load", "cpu", self.load, after=[("load", self.workers), *free], outputs=self.batch)
        again = [("preprocess", self.workers)]
        op("preprocess", "cpu", self.preprocess, inputs=["load"], after=again, outputs=self.batch)
        for r, gpu in zip(replicas, gpus, strict=True):
            batch = "preprocess"
            if self.copy_:
                queue = [] if self.pinned else [(f"train{r}", 1)]
                after = [batch, (f"copy{r}", 1), *queue]  # no data edge: the links would carry it again
                share = self.batch // self.replicas
                batch = op(f"copy{r}", gpu, self.copy_, int(self.pinned), after=after, outputs=share)
            op(f"take{r}", gpu, 0, 0, after=[batch, (f"{last}{r}", 1)])
            op(f"train{r}", gpu, self.train, 0, inputs=[batch], after=[f"take{r}"])
        for r, gpu in zip(replicas, gpus, strict=True) if self.all_reduce else ():
            op(f"all_reduce{r}", gpu, self.all_reduce, 0, "replicas", after=[f"train{r}"])
        return builder.build()

    def default_machine(self) -> Mapping[str, Any]:
        """Return a core for every worker of each stage, and a GPU for each replica."""
        gpus = {f"gpu{r}": {"kind": "gpu", "streams": 2} for r in range(self.replicas)}
        return {"devices": {"cpu0": {"kind": "cpu", "cores": 2 * self.workers}, **gpus}}
