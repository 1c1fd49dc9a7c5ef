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

from dataclasses import dataclass

from sim.graph.builder import GraphBuilder, Ref
from sim.graph.graph import Graph
from sim.words.errors import InputError

__all__ = ["DataLoading", "data_loading_graph"]


@dataclass(frozen=True)
class DataLoading:
    """Times of a batch, and what may overlap.

    Attributes
    ----------
    load_ns, preprocess_ns, train_ns : int
        The first two on the CPU, the last on a GPU.
    copy_ns : int
        To the GPU; 0: what the machine's links take, without an op of its own.
    batch_nbytes : int
        What a stage hands on.
    prefetch : int
        Batches that may be begun and not taken; 0 is synchronous.
    workers : int
        Batches that each of load and preprocess works on at once.
    pinned : bool
        The copy has a stream of its own.
    replicas : int
        GPUs ``gpu0``, ``gpu1``, ... that each train on a part of every batch.
    all_reduce_ns : int
        After the step, among the replicas.
    """

    load_ns: int
    preprocess_ns: int
    train_ns: int
    copy_ns: int = 0
    batch_nbytes: int = 0
    prefetch: int = 0
    workers: int = 1
    pinned: bool = True
    replicas: int = 1
    all_reduce_ns: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.prefetch < 0 or self.workers < 1 or self.replicas < 1:
            raise InputError(
                f"prefetch must be at least 0, workers and replicas at least 1; found prefetch "
                f"{self.prefetch}, workers {self.workers}, replicas {self.replicas}"
            )


def data_loading_graph(of: DataLoading, name: str = "data loading") -> Graph:
    """Return one iteration, tied to those before it.

    Ops are ``load`` and ``preprocess`` on a CPU and, of each replica, ``copy``, ``take``, ``train`` and
    ``all_reduce`` (with ``/0``, ``/1``, ... when there are several).

    Parameters
    ----------
    of : DataLoading
    name : str

    Examples
    --------
    >>> data_loading_graph(DataLoading(2, 3, 4, prefetch=2)).op_names
    ['load', 'preprocess', 'take', 'train']
    """
    builder = GraphBuilder(name)
    replicas = [""] if of.replicas == 1 else [f"/{r}" for r in range(of.replicas)]
    device = ["gpu"] if of.replicas == 1 else [f"gpu{r}" for r in range(of.replicas)]
    last = "all_reduce" if of.all_reduce_ns else "train"
    free: list[Ref]  # what tells that one more batch may be begun
    if of.prefetch:
        free = [(f"take{r}", of.prefetch) for r in replicas]
    else:
        free = [(f"{last}{r}", 1) for r in replicas]
    for stage, before, ns in (("load", [], of.load_ns), ("preprocess", ["load"], of.preprocess_ns)):
        builder.op(
            stage,
            kind=stage,
            inputs=before,
            after=[(stage, of.workers), *(free if stage == "load" else [])],
            outputs=of.batch_nbytes,
            duration_ns=ns,
            device="cpu",
        )
    for r, where in zip(replicas, device, strict=True):
        batch = "preprocess"
        if of.copy_ns:
            queue: list[Ref] = [] if of.pinned else [(f"train{r}", 1)]
            batch = builder.op(
                f"copy{r}",
                kind="copy",
                after=[batch, (f"copy{r}", 1), *queue],  # no data edge: the links would carry it again
                outputs=of.batch_nbytes // of.replicas,
                duration_ns=of.copy_ns,
                device=where,
                attributes={"stream": 1 if of.pinned else 0},
            )
        builder.op(
            f"take{r}",
            kind="take",
            after=[batch, (f"{last}{r}", 1)],
            duration_ns=0,
            device=where,
            attributes={"stream": 0},
        )
        builder.op(
            f"train{r}",
            kind="train",
            inputs=[batch],
            after=[f"take{r}"],
            duration_ns=of.train_ns,
            device=where,
            attributes={"stream": 0},
        )
    for r, where in zip(replicas, device, strict=True) if of.all_reduce_ns else ():
        builder.op(
            f"all_reduce{r}",
            kind="all_reduce",
            after=[f"train{other}" for other in replicas],
            duration_ns=of.all_reduce_ns,
            device=where,
            attributes={"stream": 0},
        )
    return builder.build()
