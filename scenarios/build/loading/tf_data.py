"""tf.data: ``dataset.map(load, num_parallel_calls).prefetch(buffer)``, with the prefetch autotuner.

::

    loader0     │ load 0 │ load 2 │       `parallel_calls` at once, made and not taken together no more
                │ load 1 │ load 3 │
    prefetch0   pull 0 ──► push 0 ..      takes the next element while the buffer has room; it waits for it
    main0                    next 0 ..    takes what is first in the buffer; waits if there is none

Read in TensorFlow's ``tensorflow/core/kernels/data``:

* ``prefetch_dataset_op.cc``: one thread waits while the buffer has `prefetch` elements, asks its input for
  the next one, and puts it into the buffer. It starts with the first ``GetNext``.
* ``prefetch_autotuner.cc``: see `policies.issue.prefetch_autotuner`.
* ``parallel_map_dataset_op.cc``: a call begins while fewer than `parallel_calls` run, and fewer results wait;
  a result counts until it is asked for. Results are in order (``deterministic``). Without `parallel_calls`
  the thread that asks makes the element itself.

Left out are the budget of memory, ``slack_period``, and the tuning of `parallel_calls`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from devices.describe.quantities import Size, fault
from scenarios.build.loading.input_pipeline import InputPipeline, Replica
from sim.graph.builder import Ref

__all__ = ["TfDataFields"]


def _buffer(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10**6):
        return value
    raise fault(f"{value!r} is neither auto nor a whole number of 0 to 1000000")


_BUFFER = {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 0, "maximum": 10**6}]}


class TfDataFields(InputPipeline):
    """Training on batches from tf.data: a parallel map and a prefetch."""

    model: Annotated[Literal["tf-data"], Field(description="which builder")]
    parallel_calls: Annotated[
        Size | None,
        Field(
            description="num_parallel_calls of map; default: one element after another is made when asked for"
        ),
    ] = None
    prefetch: Annotated[
        int | str,
        BeforeValidator(_buffer),
        WithJsonSchema(_BUFFER),
        Field(description="elements that the buffer holds; auto (default): the autotuner decides; 0: none"),
    ] = "auto"

    @property
    def tuned(self) -> bool:
        """Whether the autotuner decides how large the buffer is."""
        return self.prefetch == "auto"

    @property
    def puller(self) -> str:
        """Who asks the map for elements."""
        return "prefetch" if self.prefetch else "main"

    def batch(self, of: Replica, b: int, ns: int, nbytes: int) -> list[Ref]:
        """Add batch `b`.

        Examples
        --------
        >>> given = {"batches": 2, "load": "2ns", "train": "3ns"}
        >>> TfDataFields(model="tf-data", parallel_calls=1, prefetch=1, **given).graph().op_names[:6]
        ['epoch', 'pull0', 'load0', 'push0', 'next0', 'train0']
        """
        mine: dict[str, Any] = {"attributes": {"loader": of.number}} if self.tuned else {}
        pull_after: list[Ref] = [of.named("push", b - 1)] if b and self.prefetch else []
        if not self.prefetch:
            pull_after = [*([of.named("next", b - 1)] if b else []), *of.step_before(b)]
        elif not self.tuned and b >= int(self.prefetch):
            pull_after.append(of.named("next", b - int(self.prefetch)))
        after = list(dict.fromkeys(pull_after or [of.epoch]))
        kind = "pull_tuned" if self.tuned else "pull"
        pulled = of.op(self.puller, "pull", b, 0, kind=kind, after=after, **mine)
        done = self._loaded(of, b, ns, nbytes, pulled)
        if not self.prefetch:
            return [of.next(b, [pulled, done])]
        pushed = of.op(self.puller, "push", b, 0, after=[pulled, done], **mine)
        if not self.tuned:
            return [of.next(b, [pushed])]
        before = [of.named("next", b - 1)] if b else []
        asked = of.op("main", "ask", b, 0, after=list(dict.fromkeys([*before, *of.step_before(b)])), **mine)
        return [of.next(b, [pushed, asked], **mine)]

    def _loaded(self, of: Replica, b: int, ns: int, nbytes: int, pulled: str) -> str:
        """Add what makes element `b`: the thread that asks for it, or one of several calls."""
        if self.parallel_calls is None:
            return of.load(self.puller, b, ns, nbytes, [pulled])
        asked = of.named("pull", b - self.parallel_calls) if b >= self.parallel_calls else of.epoch
        if not nbytes:
            return of.load("loader", b, ns, nbytes, [asked])
        mine = {"attributes": {"loader": of.number}}
        return of.load("loader", b, ns, nbytes, [asked], "request_kept", **mine)

    def default_policy(self) -> Mapping[str, Any]:
        """Return the policy with the autotuner, or that lets a call keep its thread while it reads."""
        decided = self.tuned or (self.parallel_calls is not None and self.size)
        return {**super().default_policy(), **({"name": "loader-queues"} if decided else {})}

    def loading(self) -> Mapping[str, int]:
        """Return the calls of the map, else who makes elements itself."""
        if self.parallel_calls is not None:
            return {"workers": self.parallel_calls}
        return {"workers" if self.prefetch else "main": 1}

    def loaders(self) -> Mapping[str, int]:
        """Return the threads of the map, and the one that fills the buffer."""
        calls = {} if self.parallel_calls is None else {"loader": self.parallel_calls}
        return calls | ({"prefetch": 1} if self.prefetch else {})
