"""Input pipelines: load, preprocess, copy and train, one batch per iteration.

::

    prefetch 0    load 0 │ prep 0 │ train 0 │ load 1 │ prep 1 │ train 1 │      one after another
    prefetch 1    load 0 │ prep 0 │ train 0 │ ....
                                  │ load 1 │ prep 1 │ train 1 │            1 begins when 0 is taken
    prefetch 2    load 0 │ prep 0 │ train 0 │ train 1 │
                         │ load 1 │ prep 1  │                                  two begun and not yet taken

A batch is *taken* when the training step on it begins. Up to `prefetch` batches may be begun but not yet
taken; a producer that far ahead waits. With 0 nothing is made ahead, which is the synchronous loop.
Otherwise every stage starts the next batch as soon as it may: the `workers` of a stage work on
different batches. (`torch.utils.data.DataLoader` limits the batches in flight in this way to ``workers *
prefetch``; ``tf.data``'s ``prefetch(d)``, whose only producer is one thread, has the same effect.)

The graph is one iteration, and edges with a distance tie the iterations together (`sim.GraphBuilder`)::

    load ──► preprocess ──► copy ──► take ──► train          train ──1──► take
     ▲                                │
     └────────── distance d ──────────┘

A copy from pageable memory waits for the previous training step because it goes through the GPU's only
queue; a copy from pinned memory has a stream of its own (attribute ``stream``, which the stream
assignment `policies.streams` follows) and overlaps with training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from devices.describe.field_types import MOST_LANES, Bytes, Duration
from devices.describe.quantities import Size, Whole
from scenarios.builders.builder import Builder
from scenarios.builders.input_pipeline import InputPipeline, Replica
from sim.base.errors import InputError
from sim.graph.builder import GraphBuilder, Ref
from sim.graph.graph import Graph


class DataLoadingFields(Builder):
    """An input pipeline: load and preprocess on a CPU, copy and train on GPUs, one batch per iteration.

    Attributes
    ----------
    model
        which builder
    transfer
        time to copy a batch to the GPU; default: what the machine's links take
    size
        size of a batch
    prefetch
        batches begun before the training step takes them; 0: synchronous
    workers
        batches that load and preprocess each work on at once
    pin_memory
        copy on a stream of its own
    replicas
        number of GPUs that share each batch
    all_reduce
        time of the all-reduce among the replicas after a step
    """

    model: Literal["data-loading"]
    load: Duration
    preprocess: Duration = 0
    transfer: Duration = 0
    train: Duration
    size: Bytes = 0
    prefetch: Whole = 0
    workers: Annotated[Size, Field(le=MOST_LANES // 2)] = 1
    pin_memory: bool = True
    replicas: Size = 1
    all_reduce: Duration = 0

    def graph(self) -> Graph:
        """Return one iteration, tied to those before it.

        Ops are ``load`` and ``preprocess`` on a CPU and, for each replica, ``copy``, ``take``, ``train`` and
        ``all_reduce`` (with ``/0``, ``/1``, ... when there are several replicas).

        Examples
        --------
        >>> sizes = {"load": "2ns", "preprocess": "3ns", "train": "4ns", "prefetch": 2}
        >>> DataLoadingFields(model="data-loading", **sizes).graph().op_names
        ('load', 'preprocess', 'take', 'train')
        """
        builder = GraphBuilder("data loading")

        def op(
            name: str, device: str, ns: int, stream: int | None = None, communicator: str = "", **edges: Any
        ) -> str:
            attributes: dict[str, Any] = {"communicator": communicator} if communicator else {}
            kind = name.partition("/")[0]
            attributes |= {} if stream is None else {"stream": stream}
            return builder.op(name, kind=kind, duration_ns=ns, device=device, attributes=attributes, **edges)

        replicas = [""] if self.replicas == 1 else [f"/{r}" for r in range(self.replicas)]
        gpus = ["gpu"] if self.replicas == 1 else [f"gpu{r}" for r in range(self.replicas)]
        last = "all_reduce" if self.all_reduce else "train"
        # The event after which one more batch may begin.
        free = [(f"take{r}", self.prefetch) if self.prefetch else (f"{last}{r}", 1) for r in replicas]
        op("load", "cpu", self.load, after=[("load", self.workers), *free], outputs=self.size)
        self_edge = [("preprocess", self.workers)]
        op("preprocess", "cpu", self.preprocess, inputs=["load"], after=self_edge, outputs=self.size)
        for r, gpu in zip(replicas, gpus, strict=True):
            batch = "preprocess"
            if self.transfer:
                queue = [] if self.pin_memory else [(f"train{r}", 1)]
                after = [batch, (f"copy{r}", 1), *queue]  # no data edge: the links would carry it again
                share = self.size // self.replicas
                batch = op(f"copy{r}", gpu, self.transfer, int(self.pin_memory), after=after, outputs=share)
            op(f"take{r}", gpu, 0, 0, after=[batch, (f"{last}{r}", 1)])
            op(f"train{r}", gpu, self.train, 0, inputs=[batch], after=[f"take{r}"])
        if self.all_reduce:
            for r, gpu in zip(replicas, gpus, strict=True):
                op(f"all_reduce{r}", gpu, self.all_reduce, 0, "replicas", after=[f"train{r}"])
        return builder.build()

    def default_machine(self) -> Mapping[str, Any]:
        """Return a core for every worker of each stage, and a GPU for each replica."""
        gpus = {f"gpu{r}": {"kind": "gpu", "streams": 2} for r in range(self.replicas)}
        return {"devices": {"cpu0": {"kind": "cpu", "cores": 2 * self.workers}, **gpus}}


# ----------------------------------------------------------------------------------------------------------
# PyTorch's DataLoader: worker processes, indices dispatched round robin, results returned in order.
#
# The rules, read in ``torch/utils/data/dataloader.py`` (`_MultiProcessingDataLoaderIter`) of 2026:
#
# 0. Without ``persistent_workers`` the script starts all workers at the beginning of each epoch.
# 1. Then ``prefetch_factor * workers`` batches are dispatched.
# 2. They go round robin over the workers, however busy these are; a worker makes its batches in that
#   order.
# 3. Each time ``next()`` returns a batch, one more is dispatched. As every worker then has equally many, it
#   goes to the worker whose batch was returned.
# 4. Batches are finished in any order but returned in the order of dispatch: a slow one holds up all
#   behind it. With ``in_order=False`` they are returned as they finish.
# 5. With ``pin_memory`` one thread copies each batch into pinned memory, in the order of completion.
#
# Two workers, prefetch_factor 2, and batch 1 is slow:
#
#     dispatched   0 1 2 3          4         when 0 is returned    5 6 7
#     worker 0     │ 0 │ 2 │ 4 │ ....
#     worker 1     │       1       │ 3 │
#     returned         0           1 2 3                            2 was ready long before 1
#
# Rules 1 to 3 and 5 are edges, and so is the order of 4: load b waits for ``next`` b - prefetch_factor *
# workers, and for load b - workers, which the same worker makes. With ``in_order=False`` the batch to return
# is known only when it finishes, so the policy `policies.issue.loader_queues` decides. That policy also
# shows each worker on a lane of its own. Under other policies any core of ``loader`` does the work of any
# worker, at the same times.


class DataLoaderFields(InputPipeline):
    """Training on batches from PyTorch's DataLoader.

    Attributes
    ----------
    model
        which builder
    workers
        worker processes; 0: the script loads by itself
    prefetch_factor
        batches of each worker that are handed out and not returned; default 2
    in_order
        return batches in order; false: as they come
    pin_memory
        time of the thread that copies a batch to pinned memory; default: there is none, and copies to the GPU
        wait for its step
    start
        time to start the workers of each epoch; 0: they persist
    """

    model: Literal["data-loader"]
    workers: Annotated[Whole, Field(le=MOST_LANES)] = 0
    prefetch_factor: Size | None = None
    in_order: bool = True
    pin_memory: Duration | None = None

    start: Duration = 0

    @property
    def start_ns(self) -> int:
        """Time to start the workers."""
        if self.start and not self.workers:
            raise InputError("there are no workers to start; give workers", path=("start",))
        return self.start

    def copies_aside(self) -> bool:
        """Whether copies to the GPU have a stream of their own: if they come from pinned memory."""
        return self.pin_memory is not None

    @property
    def primed(self) -> int:
        """Number of batches dispatched but not yet returned."""
        return self.workers * (self.prefetch_factor or 2)

    def make_batch(self, replica: Replica, b: int, ns: int, nbytes: int) -> list[Ref]:
        """Add batch `b`.

        Examples
        --------
        >>> keys = {"steps": 2, "load": "2ns", "train": "3ns", "pin_memory": "1ns", "workers": 1}
        >>> DataLoaderFields(model="data-loader", **keys).graph().op_names[:5]
        ('epoch', 'load0', 'pin_memory0', 'next0', 'train0')
        """
        if not self.workers:
            request = [replica.name_op("next", b - 1)] if b else []
            after = list(dict.fromkeys([*request, *replica.step_before(b)]))
            loaded: Ref = replica.load("main", b, ns, nbytes, after)
            if self.pin_memory is not None:
                loaded = replica.op("main", "pin_memory", b, self.pin_memory, after=[loaded])
            return [replica.next(b, [loaded])]
        dispatched = replica.name_op("next", b - self.primed) if b >= self.primed else replica.epoch
        after = [dispatched]
        worker = {"worker": b % self.workers} if self.in_order or b < self.primed else {}
        if self.in_order:
            after += [replica.name_op("load", b - self.workers)] if b >= self.workers else []
        loader = {"loader": replica.number}
        loaded = replica.load("loader", b, ns, nbytes, after, attributes={**loader, **worker})
        if self.pin_memory is not None:
            loaded = replica.op("pin", "pin_memory", b, self.pin_memory, after=[loaded], attributes=loader)
        if self.in_order:
            return [replica.next(b, [loaded])]
        return [replica.next(b, [], "next_that_came", attributes=loader)]

    def default_policy(self) -> Mapping[str, Any]:
        """Return the policy; with ``in_order: false``, the one that returns batches as they finish."""
        name = {} if self.in_order else {"name": "loader-queues"}
        return {**super().default_policy(), **name}

    def loaders(self) -> Mapping[str, int]:
        """Return the workers and the pinning thread."""
        if not self.workers:
            return {}
        return {"loader": self.workers} | ({"pin": 1} if self.pin_memory is not None else {})


# ----------------------------------------------------------------------------------------------------------
# tf.data: ``dataset.map(load, num_parallel_calls).prefetch(buffer)``, with the prefetch autotuner.
#
#     loader0     │ load 0 │ load 2 │       at most `workers` elements are in progress or not yet taken
#                 │ load 1 │ load 3 │
#     prefetch0   pull 0 ──► push 0 ..      takes the next element when the buffer has room; waits for it
#     main0                    next 0 ..    takes the first element of the buffer; waits if there is none
#
# Read in TensorFlow's ``tensorflow/core/kernels/data``:
#
# * ``prefetch_dataset_op.cc``: one thread waits while the buffer has `prefetch` elements, asks its input for
#   the next one, and puts it into the buffer. It starts with the first ``GetNext``.
# * ``prefetch_autotuner.cc``: see `policies.issue.loader_queues`.
# * ``parallel_map_dataset_op.cc``: a call begins while fewer than `workers` calls run and fewer results
#   wait; a result counts until it is requested. Results are in order (``deterministic``). Without
#   `workers` the requesting thread makes the element itself.
#
# * ``inject_prefetch.cc``, on by default: TensorFlow adds a tuned prefetch behind a sequential map, but
#   not behind a parallel map or a prefetch of the user's.
#
# Not modelled: the memory budget, ``slack_period``, and the tuning of `workers`.


class TfDataFields(InputPipeline):
    """Training on batches from tf.data: a parallel map and a prefetch.

    Attributes
    ----------
    model
        which builder
    workers
        num_parallel_calls of map; default: one element after another is made when asked for
    prefetch
        elements that the buffer holds; auto (default): the autotuner decides; 0: the user has none, and
        TensorFlow adds a tuned one behind a sequential map; none: nor does it (inject_prefetch off)
    """

    model: Literal["tf-data"]
    workers: Annotated[Size, Field(le=MOST_LANES)] | None = None
    prefetch: Annotated[Whole, Field(le=10**6)] | Literal["auto", "none"] = "auto"

    @property
    def buffer(self) -> int:
        """Initial capacity of the buffer in elements; 0: there is none."""
        return 0 if self.prefetch == "none" else int(self.tuned or self.prefetch)

    @property
    def tuned(self) -> bool:
        """Whether the autotuner sets the size of the buffer."""
        return self.prefetch == "auto" or (self.prefetch == 0 and self.workers is None)

    @property
    def puller(self) -> str:
        """Thread that requests elements from the map."""
        return "prefetch" if self.buffer else "main"

    def make_batch(self, replica: Replica, b: int, ns: int, nbytes: int) -> list[Ref]:
        """Add batch `b`.

        Examples
        --------
        >>> keys = {"steps": 2, "load": "2ns", "train": "3ns"}
        >>> TfDataFields(model="tf-data", workers=1, prefetch=1, **keys).graph().op_names[:6]
        ('epoch', 'pull0', 'load0', 'push0', 'next0', 'train0')
        """
        tag: dict[str, Any] = {"attributes": {"loader": replica.number}} if self.tuned else {}
        asking = [*([replica.name_op("next", b - 1)] if b else []), *replica.step_before(b)]
        pull_after: list[Ref] = [replica.name_op("push", b - 1)] if b and self.buffer else []
        if not self.buffer:
            pull_after = list(asking)
        elif not self.tuned and b >= self.buffer:
            pull_after.append(replica.name_op("next", b - self.buffer))
        after = list(dict.fromkeys(pull_after or [replica.epoch]))
        kind = "pull_tuned" if self.tuned else "pull"
        pulled = replica.op(self.puller, "pull", b, 0, kind=kind, after=after, **tag)
        loaded = self._load(replica, b, ns, nbytes, pulled)
        if not self.buffer:
            return [replica.next(b, [pulled, loaded])]
        pushed = replica.op(self.puller, "push", b, 0, after=[pulled, loaded], **tag)
        if not self.tuned:
            return [replica.next(b, [pushed])]
        ask = replica.op("main", "ask", b, 0, after=list(dict.fromkeys(asking)), **tag)
        return [replica.next(b, [pushed, ask], **tag)]

    def _load(self, replica: Replica, b: int, ns: int, nbytes: int, pulled: str) -> str:
        """Add the op that makes element `b`, on the requesting thread or as one of several calls."""
        if self.workers is None:
            return replica.load(self.puller, b, ns, nbytes, [pulled])
        request = replica.name_op("pull", b - self.workers) if b >= self.workers else replica.epoch
        if not nbytes:
            return replica.load("loader", b, ns, nbytes, [request])
        tag = {"attributes": {"loader": replica.number}}
        return replica.load("loader", b, ns, nbytes, [request], "request_kept", **tag)

    def default_policy(self) -> Mapping[str, Any]:
        """Return the policy; one with the autotuner, or that lets a call keep its thread while it reads."""
        decided = self.tuned or (self.workers is not None and self.size)
        return {**super().default_policy(), **({"name": "loader-queues"} if decided else {})}

    def loaders(self) -> Mapping[str, int]:
        """Return the threads of the map and the thread that fills the buffer."""
        calls = {} if self.workers is None else {"loader": self.workers}
        return calls | ({"prefetch": 1} if self.buffer else {})
