"""The ops of a graph file as columns: some records at a time, checked while they are parsed.

::

    {"schema": ..., "tensors": [...], "ops": [{...}, {...}, {...}, {...}, {...}]}
     ───────────────────────────────          ──────────── ──────────── ─────
     checked like any file                    some at a time, so that a million are never in memory

For anything unusual (a wrong type, an unknown name, functions, growth with the batch), the
exact reader takes over (`scenarios.importers.graph_json`), which reads the file or words the error.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, NotRequired

import msgspec
import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from scenarios.ops.inlining import FUNCTIONAL_KINDS
from sim.base.arrays import UNSET, Codes, Csr, IntArray
from sim.graph.graph import split_output

# ----------------------------------------------------------------------------------------------------------
# The shape of a graph file (``sim.graph/1``): its keys, and the values of each.
#
# pydantic checks a file against these types while it parses it, and derives the JSON Schema from them;
# `scenarios.importers.graph_json` documents the keys.

SCHEMA = "sim.graph/1"
"""Required value of the key ``schema``."""

_MAX_INT: Final = 2**63 - 1
Amount = Annotated[int, Field(ge=0, le=_MAX_INT), msgspec.Meta(ge=0, le=_MAX_INT)]
Slope = Annotated[int, Field(ge=-_MAX_INT - 1, le=_MAX_INT)]
Name = Annotated[str, Field(min_length=1), msgspec.Meta(min_length=1)]
Reference = Name | tuple[Name, Amount]
_STRICT = ConfigDict(extra="forbid", strict=True)


@with_config(_STRICT)
class TensorSlope(TypedDict):
    """Growth of a tensor with one more sample."""

    nbytes: Slope


@with_config(_STRICT)
class OpSlope(TypedDict):
    """Growth of an op with one more sample; omitted numbers do not grow."""

    outputs: NotRequired[list[Slope]]
    flops: NotRequired[Slope]
    bytes_read: NotRequired[Slope]
    bytes_written: NotRequired[Slope]
    attributes: NotRequired[dict[str, Slope]]


@with_config(_STRICT)
class TensorRecord(TypedDict):
    """A tensor that no op produces."""

    name: Name
    role: Literal["input", "parameter"]
    nbytes: NotRequired[Amount]
    device: NotRequired[Name]
    per_sample: NotRequired[TensorSlope]


@with_config(_STRICT)
class OpRecord(TypedDict):
    """An op; the keys are the arguments of `GraphBuilder.op`."""

    name: Name
    kind: NotRequired[Name]
    inputs: NotRequired[list[Reference]]
    after: NotRequired[list[Reference]]
    outputs: NotRequired[list[Amount]]
    flops: NotRequired[Amount]
    bytes_read: NotRequired[Amount]
    bytes_written: NotRequired[Amount]
    duration_ns: NotRequired[Amount]
    duration_by_kind_ns: NotRequired[dict[Name, Amount]]
    device: NotRequired[Name]
    dtype: NotRequired[Name]
    stage: NotRequired[Amount]
    micro_batch: NotRequired[Amount]
    phase: NotRequired[Name]
    attributes: NotRequired[dict[str, Any]]
    per_sample: NotRequired[OpSlope]


@with_config(_STRICT)
class FunctionRecord(TypedDict):
    """Ops that an op of kind call, if or while stands for."""

    name: Name
    inputs: NotRequired[list[Name]]
    ops: Annotated[list[OpRecord], Field(min_length=1)]
    results: Annotated[list[Name], Field(min_length=1)]


@with_config(_STRICT)
class GraphFileRecord(TypedDict):
    """A whole file."""

    schema: Literal["sim.graph/1"]
    name: str
    source: NotRequired[str]
    batch: NotRequired[Annotated[int, Field(ge=1)]]
    devices: NotRequired[dict[Name, dict[Name, str]]]
    machine: NotRequired[dict[Name, Any]]
    tensors: NotRequired[list[TensorRecord]]
    ops: Annotated[list[OpRecord], Field(min_length=1)]
    functions: NotRequired[list[FunctionRecord]]


FILE = TypeAdapter(GraphFileRecord)
"""Validator of a whole file."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a graph file, as committed in ``scenarios/graph.schema.json``."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **FILE.json_schema(),
        "title": "A computation graph (sim.graph/1)",
    }


# ----------------------------------------------------------------------------------------------------------
# The same for msgspec, which is many times faster. Omitted values are "", -1 or empty here.

# A name in a union has no `Meta`: msgspec 0.22 confuses it with that of the other member's number.
_Names = list[str | tuple[str, Amount]]


class _Op(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The usual fields of an op."""

    name: Name
    kind: Name = "op"
    inputs: _Names = []
    after: _Names = []
    outputs: list[Amount] = []
    flops: Amount = 0
    bytes_read: Amount = UNSET
    bytes_written: Amount = UNSET
    duration_ns: Amount = UNSET
    duration_by_kind_ns: dict[Name, Amount] | msgspec.UnsetType = msgspec.UNSET
    device: Name = ""
    dtype: Name = ""
    stage: Amount = UNSET
    micro_batch: Amount = UNSET
    phase: Name = ""
    attributes: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


_NUMBERS: Final = ("flops", "bytes_read", "bytes_written", "duration_ns", "stage", "micro_batch")
_WORDS: Final = ("kind", "device", "dtype", "phase")
_STAND_IN: Final = msgspec.Raw(b'[{"name": "(the ops)"}]')
_BLOCK: Final = 128
"""Number of records held as objects at once: these should fit into the caches."""


def read_columns(content: bytes) -> tuple[GraphFileRecord, dict[str, Any]] | None:
    """Return a file's content except its ops, and the ops as arguments of `GraphBuilder.extend`.

    Return None if the exact reader is needed.
    """
    try:
        members = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        _check(msgspec.json.encode(members).count(b'"') == content.count(b'"'))
        records = msgspec.json.decode(members["ops"], type=list[msgspec.Raw])
        head = msgspec.json.encode({**members, "ops": _STAND_IN})
        _check(_has_keys_once([head]))
        file = FILE.validate_json(head)
        externals = [tensor["name"] for tensor in file.get("tensors", [])]
        usual = records and "functions" not in file
        return (file, _columns(records, externals)) if usual else None
    except (msgspec.DecodeError, KeyError, ValueError):
        return None


def _columns(records: Sequence[msgspec.Raw], externals: Sequence[str]) -> dict[str, Any]:
    """Return the columns of records; KeyError, ValueError or DecodeError if a record is unusual."""
    number = {name: -2 - k for k, name in enumerate(externals)}
    columns = {key: array("q") for key in (*_NUMBERS, *_WORDS)}
    words = {key: Codes({"": 0}) for key in _WORDS}
    inputs, after = _References(number), _References(number)
    counts, sizes = array("q"), array("q")
    by_kind: dict[str, dict[int, int]] = {}
    attributes: dict[int, dict[str, Any]] = {}
    decode = msgspec.json.Decoder(_Op).decode
    for before in range(0, len(records), _BLOCK):
        block = records[before : before + _BLOCK]
        _check(_has_keys_once(block))
        ops = list(map(decode, block))
        number.update(zip([op.name for op in ops], range(before, len(records)), strict=False))
        for key, column in columns.items():
            values = map(attrgetter(key), ops)
            column.fromlist(list(map(words[key].__getitem__, values) if key in words else values))
        outputs = [op.outputs or (0,) for op in ops]
        counts.fromlist(list(map(len, outputs)))
        sizes.fromlist(list(itertools.chain.from_iterable(outputs)))
        inputs.add([op.inputs for op in ops])
        after.add([op.after for op in ops])
        for n, op in enumerate(ops, before):
            if op.attributes:
                attributes[n] = op.attributes
            if op.duration_by_kind_ns:
                for kind, ns in op.duration_by_kind_ns.items():
                    by_kind.setdefault(kind, {})[n] = ns
    _check(len(number) == len(externals) + len(records))
    _check(not words["kind"].keys() & FUNCTIONAL_KINDS.keys())
    for name in number:
        if ":" in name:
            _check((split_output(name) or ("",))[0] not in number)  # its meaning depends on where it is read
    n_outputs = np.asarray(counts)
    first = np.cumsum(n_outputs) - n_outputs

    def output(name: str) -> int:
        op, k = (name, 0) if name in number else split_output(name) or ("", 0)
        _check(number[op] >= 0 and k < n_outputs[number[op]])
        return int(first[number[op]]) + k

    read, followed = inputs.rows(output, first), after.rows(number.__getitem__)
    _check(bool((followed.indices >= 0).all()))  # an input cannot be followed
    for name in externals:
        del number[name]
    arrays = {key: np.asarray(column) for key, column in columns.items()}
    return arrays | {
        "names": number,
        **{key: ([*codes][1:], arrays[key] - 1) for key, codes in words.items()},
        "inputs": read,
        "input_distance": np.asarray(inputs.distances),
        "after": followed,
        "after_distance": np.asarray(after.distances),
        "outputs": Csr.of_counts(n_outputs, np.asarray(sizes)),
        "duration_by_kind": by_kind,
        "attributes": attributes,
    }


def _has_keys_once(texts: Sequence[msgspec.Raw | bytes]) -> bool:
    """Whether no object repeats a key: then re-encoding it gives as many quotation marks."""
    text = b"".join(texts)
    encoded = msgspec.json.encode(list(map(msgspec.json.decode, texts)))
    return encoded.count(b'"') == text.count(b'"') and b"\\u0022" not in text


class _References:
    """References of ops, one row each: op numbers, -2 - k for external tensor k, and names defined later."""

    def __init__(self, number: Mapping[str, int]) -> None:
        self._number = number
        self._counts, self._entries, self.distances = array("q"), array("q"), array("q")
        self._later: dict[int, str] = {}

    def add(self, rows: Sequence[_Names]) -> None:
        """Add one row for each of some ops."""
        self._counts.fromlist(list(map(len, rows)))
        names: list[Any] = list(itertools.chain.from_iterable(rows))
        distances = [0] * len(names)
        if tuple in set(map(type, names)):
            pairs = [ref if type(ref) is tuple else (ref, 0) for ref in names]
            names, distances = [name for name, _ in pairs], [distance for _, distance in pairs]
        self.distances.fromlist(distances)
        try:
            self._entries.fromlist(list(map(self._number.__getitem__, names)))
        except KeyError:
            unknown = [n for n, name in enumerate(names) if name not in self._number]
            self._later.update((len(self._entries) + n, names[n]) for n in unknown)
            self._entries.fromlist([self._number.get(name, UNSET) for name in names])

    def rows(self, find: Callable[[str], int], first: IntArray | None = None) -> Csr:
        """Return the rows, ops as their first tensors if `first` is given; `find` resolves later names."""
        entries = np.asarray(self._entries)
        if first is not None:
            np.copyto(entries, first.take(entries, mode="clip"), where=entries >= 0)
        for position, name in self._later.items():
            entries[position] = find(name)
        return Csr.of_counts(np.asarray(self._counts), entries)


def _check(usual: bool) -> None:
    if not usual:
        raise ValueError("the exact reader has to look at this file")
