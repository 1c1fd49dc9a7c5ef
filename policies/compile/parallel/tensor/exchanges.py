"""What a tensor is on a tensor-parallel rank, and what ranks exchange to make another thing of it.

::

    part      ──all_reduce──► whole          part ──reduce_scatter──► sequence       (sequence parallelism)
    sequence  ──all_gather──► whole          split ──all_gather──► whole

A *whole* tensor is the same on all ranks; of a *split* one each has columns or heads; *parts* add up to it;
of a *sequence* each has some tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from policies.compile.parallel.program import COMPUTE
from policies.compile.records import Record, Records, free_name

__all__ = ["PART", "SEQUENCE", "SPLIT", "WHOLE", "Exchanges"]

WHOLE, SPLIT, PART, SEQUENCE = "whole", "split", "part", "sequence"

STREAM: Final = "tensor parallel"
"""The communicator, and the stream of what runs beside the gradient of a weight."""


class Exchanges:
    """Keeps what each tensor is, and writes what ranks exchange.

    Parameters
    ----------
    records : Records
        The program of one device.
    t : int
        Ranks.
    sequence : bool
        Whether sums leave each rank some tokens.

    Attributes
    ----------
    records : Records
        The program of a rank so far.
    state : dict of str to str
        Tensor of the one device → what it is on the rank.
    moved : dict of str to str
        Tensor → what it became when its parts were summed.
    last : str
        What was issued last on the stream of all.
    """

    def __init__(self, records: Records, t: int, sequence: bool) -> None:
        self.old, self.t, self.sequence = records, t, sequence
        suffix = "tensor parallel" + (", sequence parallel" if sequence else "")
        self.records = Records(f"{records.name} ({suffix})", {}, {})
        self.state: dict[str, str] = {}
        self.moved: dict[str, str] = {}
        self.gathered: dict[tuple[str, bool], str] = {}
        self.last = ""

    def share(self, nbytes: int) -> int:
        """Return the bytes of a rank's part."""
        return -(-nbytes // self.t)

    def of(self, tensor: str) -> str:
        """Return what a tensor is on this rank; from an iteration before: as it is given."""
        return self.state.get(tensor, WHOLE)

    def free(self, name: str) -> str:
        """Return a name for an op that one device does not have: see `free_name`."""
        return free_name(name, self.records.ops, self.old.ops, self.old.externals)

    def reduced(self, tensor: str) -> str:
        """Sum the parts of a tensor: all of it, or with sequence parallelism some tokens."""
        producer = self.old.producer(tensor)
        assert producer is not None
        nbytes = self.old.nbytes(tensor)
        positions = producer.kind == "gather" and len(producer.inputs) > 2  # they are added to the whole
        scatter = self.sequence and not positions
        kind = "reduce_scatter" if scatter else "all_reduce"
        kept = self.share(nbytes) if scatter else nbytes
        beside = producer.phase not in (None, "F")
        self.moved[tensor] = self.collective(
            f"{tensor}/{kind}", kind, tensor, nbytes, kept, producer, beside=beside
        )
        self.state[tensor] = SEQUENCE if self.sequence else WHOLE
        if self.sequence and positions:
            self._scatter(tensor, producer)
        return self.moved[tensor]

    def _scatter(self, tensor: str, producer: Record) -> None:
        """Copy some tokens of a tensor (``scatter_to_sequence_parallel_region``)."""
        name, kept = self.free(f"{tensor}/scatter"), self.share(self.old.nbytes(tensor))
        self.records.ops[name] = replace(
            producer,
            name=name,
            kind="slice",
            inputs=[(self.moved[tensor], 0)],
            after=[],
            outputs=(kept,),
            flops=0,
            bytes_read=kept,
            bytes_written=kept,
            duration_ns=None,
            duration_by_kind={},
            attributes={"stream": COMPUTE},
        )
        self.moved[tensor] = name

    def whole(self, tensor: str, *, backward: bool, beside: bool = False) -> str:
        """Return a tensor, gathered if ranks have parts of it."""
        if self.of(tensor) == PART:
            self.reduced(tensor)
        source = self.moved.get(tensor, tensor)
        if self.of(tensor) == WHOLE:
            return source
        if (tensor, backward) not in self.gathered:
            producer = self.old.producer(tensor)
            assert producer is not None
            again = backward and producer.phase in (None, "F")
            name = f"{tensor}/all_gather{'_again' if again else ''}"
            nbytes = self.old.nbytes(tensor)
            of = replace(producer, phase="I") if again else producer
            self.gathered[tensor, backward] = self.collective(
                name, "all_gather", source, nbytes, nbytes, of, beside=beside
            )
        return self.gathered[tensor, backward]

    def collective(
        self, name: str, kind: str, source: str, nbytes: int, kept: int, of: Record, *, beside: bool = False
    ) -> str:
        """Write what ranks exchange; `beside`: on a stream that waits for what was issued before only."""
        name = self.free(name)
        self.records.ops[name] = Record(
            name,
            kind,
            [(source, 0)],
            [(self.last, 0)] if beside and self.last != source else [],
            (kept,),
            bytes_read=min(nbytes, self.records.nbytes(source)),
            bytes_written=kept,
            dtype=of.dtype,
            stage=of.stage,
            micro_batch=of.micro_batch,
            phase=of.phase,
            attributes={
                "communicator": STREAM,
                "dimension": "tp",
                "stream": STREAM if beside else COMPUTE,
                "nbytes": nbytes,
            },
        )
        return name
