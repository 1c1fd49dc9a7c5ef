"""PyTorch's DataLoader: worker processes, indices handed out round robin, results returned in order.

The rules, read in ``torch/utils/data/dataloader.py`` (`_MultiProcessingDataLoaderIter`) of 2026:

1. At the start of an epoch ``prefetch_factor * num_workers`` batches are handed out.
2. They go round robin over the workers, whatever these have to do; a worker makes its batches in that order.
3. Each time ``next()`` returns a batch, one more is handed out. As every worker has as many then, it goes to
   the worker whose batch was returned.
4. Batches come in any order, and are returned in the order in which they were handed out: a slow one holds up
   all behind it. With ``in_order=False`` they are returned as they come.
5. With ``pin_memory`` one thread copies each batch into pinned memory, in the order in which they came.

Two workers, prefetch_factor 2, and batch 1 is slow::

    handed out   0 1 2 3          4         when 0 is returned    5 6 7
    worker 0     │ 0 │ 2 │ 4 │ ....
    worker 1     │       1       │ 3 │
    returned         0           1 2 3                            2 was there long before 1

Rules 1 to 3 and 5 are edges, and so is the order of 4: load b waits for ``next`` b - prefetch_factor *
num_workers, and for load b - num_workers, which is the same worker's. Which batch is returned with
``in_order=False`` is known only when it comes: there the policy `policies.issue.loader_queues` decides. It
also shows each worker on a lane of its own. Under other policies any core of ``loader`` does what is some
worker's turn, at the same times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from devices.describe.field_types import Duration
from devices.describe.quantities import Size, Whole
from scenarios.build.loading.input_pipeline import InputPipeline, Replica
from sim.graph.builder import Ref

__all__ = ["DataLoaderFields"]


class DataLoaderFields(InputPipeline):
    """Training on batches from PyTorch's DataLoader."""

    model: Annotated[Literal["data-loader"], Field(description="which builder")]
    num_workers: Annotated[Whole, Field(description="worker processes; 0: the script loads by itself")] = 0
    prefetch_factor: Annotated[
        Size | None,
        Field(description="batches of each worker that are handed out and not returned; default 2"),
    ] = None
    in_order: Annotated[bool, Field(description="return batches in order; false: as they come")] = True
    pin_memory: Annotated[
        Duration | None,
        Field(
            description="time of the thread that copies a batch to pinned memory; default: there is none, "
            "and copies to the GPU wait for its step"
        ),
    ] = None

    def copies_aside(self) -> bool:
        """Return whether copies to the GPU are on a stream of their own: from pinned memory."""
        return self.pin_memory is not None

    @property
    def primed(self) -> int:
        """Batches that are handed out and not returned."""
        return self.num_workers * (self.prefetch_factor or 2)

    def batch(self, of: Replica, b: int, ns: int, nbytes: int) -> list[Ref]:
        """Add batch `b`.

        Examples
        --------
        >>> given = {"batches": 2, "load": "2ns", "train": "3ns", "pin_memory": "1ns", "num_workers": 1}
        >>> DataLoaderFields(model="data-loader", **given).graph().op_names[:5]
        ['epoch', 'load0', 'pin_memory0', 'next0', 'train0']
        """
        if not self.num_workers:
            asked = [of.named("next", b - 1)] if b else []
            after = list(dict.fromkeys([*asked, *of.step_before(b)]))
            done: Ref = of.load("main", b, ns, nbytes, after)
            if self.pin_memory is not None:
                done = of.op("main", "pin_memory", b, self.pin_memory, after=[done])
            return [of.next(b, [done])]
        handed_out = of.named("next", b - self.primed) if b >= self.primed else of.epoch
        after = [handed_out]
        worker = {"worker": b % self.num_workers} if self.in_order or b < self.primed else {}
        mine: dict[str, Any] = {"attributes": {"loader": of.number, **worker}}
        if self.in_order:
            after += [of.named("load", b - self.num_workers)] if b >= self.num_workers else []
        done = of.load("loader", b, ns, nbytes, after, **mine)
        if self.pin_memory is not None:
            pins: dict[str, Any] = {"attributes": {"loader": of.number}}
            done = of.op("pin", "pin_memory", b, self.pin_memory, after=[done], **pins)
        if self.in_order:
            return [of.next(b, [done])]
        return [of.next(b, [], "next_that_came", attributes={"loader": of.number})]

    def default_policy(self) -> Mapping[str, Any]:
        """Return the policy that hands out batches and returns them as they come, where that is asked for."""
        name = {} if self.in_order else {"name": "loader-queues"}
        return {**super().default_policy(), **name}

    def loading(self) -> Mapping[str, int]:
        """Return the workers, or the script itself."""
        return {"workers": self.num_workers} if self.num_workers else {"main": 1}

    def loaders(self) -> Mapping[str, int]:
        """Return the workers, and the thread that pins."""
        if not self.num_workers:
            return {}
        return {"loader": self.num_workers} | ({"pin": 1} if self.pin_memory is not None else {})
