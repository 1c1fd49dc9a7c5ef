"""The program of a rank: the ops that its host issues, in order, with their streams.

::

    compute       F0  F1  F2  B2  B1  B0            U0 U1 U2
    all_reduce                [ b0 ]  [ b1 ]

Each method of parallel training is such a list: the ops of the step, with others among them that gather,
reduce or copy. Edges are dependencies, the attribute ``stream`` selects an op's stream (`policies.streams`),
and ``communicator`` the ranks that take part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from policies.parallel.training_step import Parameter, TrainingStep
from policies.rewrite.records import Edge, OpEntry, Records, free_name, write
from sim import Graph

COMPUTE: Final = "compute"
"""Stream of all ops for which no other is named."""


class HostProgram:
    """Collects the ops that the host of a rank issues.

    Parameters
    ----------
    step : TrainingStep
    name : str
        Method of training, for the name of the graph.

    Attributes
    ----------
    records : Records
        Ops issued so far.
    instead : dict of str to str
        Tensor → tensor that ops of the step read in its place from here on.
    parts : dict of str to str
        Parameter → the rank's part of its gradient so far.
    """

    def __init__(self, step: TrainingStep, name: str) -> None:
        self.records = Records(f"{step.records.name} ({name})", {}, dict(step.records.externals))
        self.instead: dict[str, str] = {}
        self.parts: dict[str, str] = {}
        self._of_step = step.records

    def compute(self, record: OpEntry, after: Iterable[str | Edge | None] = ()) -> None:
        """Issue an op of the step."""
        inputs = [(self.instead.get(tensor, tensor), distance) for tensor, distance in record.inputs]
        edges = [*record.after, *_edges(after)]
        stream = record.attributes.get("stream") if "communicator" in record.attributes else None
        attributes = {**record.attributes, "stream": stream or COMPUTE}
        self.records.ops[record.name] = replace(record, inputs=inputs, after=edges, attributes=attributes)

    def add(
        self,
        name: str,
        kind: str,
        reads: Sequence[str],
        outputs: Sequence[int],
        *,
        after: Iterable[str | Edge | None] = (),
        stream: str = COMPUTE,
        **attributes: Any,
    ) -> str:
        """Issue an op that moves bytes; return its name, which differs from `name` if that is in use.

        Earlier rewrites may have used it: with sequence parallelism a tensor-parallel rank has an op
        ``layer0.norm1/all_gather``, so the gather of fsdp2's module is ``layer0.norm1/all_gather.2``.
        """
        name = free_name(name, self.records.ops, self._of_step.ops, self._of_step.externals)
        self._write(OpEntry(name, kind, _edges(reads), _edges(after), tuple(outputs)), stream, attributes)
        return name

    def _write(self, record: OpEntry, stream: str, attributes: Mapping[str, Any]) -> None:
        record.bytes_read = sum(map(self.records.nbytes, record.reads))
        record.bytes_written = sum(record.outputs)
        record.attributes = {"stream": stream, **attributes}
        self.records.ops[record.name] = record

    def add_part(self, prefix: str, parameter: Parameter, part: str, n: int, stream: str) -> str | None:
        """Add a rank's part of a gradient to that of earlier micro-batches, if any; return the adding op.

        It has the name of the op it replaces, which adds whole gradients.
        """
        before = self.parts.get(parameter.name)
        self.parts[parameter.name] = part
        if before is None:
            return None
        name = self.parts[parameter.name] = f"{prefix}{parameter.name}/accumulate"
        sizes = (shard_nbytes(parameter, n),)
        record = OpEntry(name, "add", _edges([before, part]), [], sizes, dtype=parameter.dtype)
        record.flops = -(-parameter.elements // n)
        self._write(record, stream, {})
        return name

    def shard(self, step: TrainingStep, n: int, *, parameters: bool = True) -> list[OpEntry]:
        """Reduce states, and `parameters`, to 1/`n` per rank; return the updates, scaled likewise."""
        whole = set() if parameters else {each.name for each in step.parameters}
        for name in dict.fromkeys(tensor for update in step.updates for tensor in update.reads):
            if name in self.records.externals and name not in whole:
                given = self.records.externals[name]
                self.records.externals[name] = replace(given, nbytes=-(-given.nbytes // n))
        return [
            replace(
                update.part(Fraction(1, n)),
                flops=-(-update.flops // n),
                bytes_read=-(-update.bytes_read // n),
                bytes_written=-(-update.bytes_written // n),
            )
            if "communicator" not in update.attributes
            else _sum_of_parts(update, n if parameters else 1)
            for update in step.updates
        ]

    def update(self, updates: Iterable[OpEntry], gradients: dict[str, str], after: str | None) -> None:
        """Issue the updates after an op; `gradients` are read in place of the step's."""
        self.instead = gradients
        for update in updates:
            self.compute(update, after=[after])

    def graph(self) -> Graph:
        """Return the graph of one rank."""
        return write(self.records)


def exchange(
    of: OpEntry,
    name: str,
    kind: str,
    reads: Iterable[str],
    nbytes: int,
    outputs: Sequence[int],
    *,
    after: Iterable[str | Edge | None] = (),
    **attributes: Any,
) -> OpEntry:
    """Return a collective related to op `of`, with `nbytes` as the collective counts them."""
    made = of.like(name, kind, dict.fromkeys(reads), outputs, after=_edges(after), bytes_read=nbytes)
    made.attributes = {"stream": COMPUTE, "nbytes": nbytes, **attributes}
    return made


def _edges(given: Iterable[str | Edge | None]) -> list[Edge]:
    return [each if isinstance(each, tuple) else (each, 0) for each in given if each is not None]


def _sum_of_parts(sum_: OpEntry, n: int) -> OpEntry:
    """Return a sum over other ranks for sharded gradients."""
    sizes = tuple(-(-nbytes // n) for nbytes in sum_.outputs)
    attributes = {**sum_.attributes, "nbytes": sum(sizes)} if n > 1 else sum_.attributes
    return replace(
        sum_, outputs=sizes, bytes_read=sum(sizes), bytes_written=sum(sizes), attributes=attributes
    )


def shard_nbytes(parameter: Parameter, n: int) -> int:
    """Return the bytes of a rank's part of a gradient: whole elements, the last part padded.

    Examples
    --------
    >>> shard_nbytes(Parameter("w", "dw", "u", nbytes=40, elements=10, dtype="fp32"), 4)
    12
    """
    return -(-parameter.elements // n) * (parameter.nbytes // max(1, parameter.elements))
