"""The ops of a graph file as columns: a block of records at a time, checked by sets and arrays.

::

    {"schema": ..., "tensors": [...], "ops": [{...}, {...}, | {...}, {...}, | {...}]}
     ─────────────────────────────────────── ────────────────────────────── ──
     skeleton, with one op as a stand-in      blocks, cut where an op ends   skeleton

A block is a JSON list of its own, so that a million records never lie in memory at once. Where anything
is out of the ordinary (a wrong type, an unknown name, functions, growth with the batch), the file is left
to the exact reader (`scenarios.importers.graph_json`), which reads it or words the error.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import itemgetter
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, with_config
from pydantic_core import from_json
from typing_extensions import TypedDict

from scenarios.ops.inlining import FUNCTIONAL_KINDS
from sim.base.arrays import UNSET, Csr, IntArray
from sim.graph.graph import split_output

# ----------------------------------------------------------------------------------------------------------
# The shape of a graph file (``sim.graph/1``): what keys there are, and what each may hold.
#
# pydantic checks a file against these types while it parses it, and derives the JSON Schema from them;
# `scenarios.importers.graph_json` says what the keys mean.

SCHEMA = "sim.graph/1"
"""What the key ``schema`` must say."""

Amount = Annotated[int, Field(ge=0, le=2**63 - 1)]
Slope = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Name = Annotated[str, Field(min_length=1)]
Reference = Name | tuple[Name, Amount]
_STRICT = ConfigDict(extra="forbid", strict=True)


@with_config(_STRICT)
class TensorSlope(TypedDict):
    """What one more sample adds to a tensor."""

    nbytes: Slope


@with_config(_STRICT)
class OpSlope(TypedDict):
    """What one more sample adds to an op; what is left out does not grow."""

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
"""What checks a whole file."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a graph file, as committed in ``scenarios/graph.schema.json``."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **FILE.json_schema(),
        "title": "A computation graph (sim.graph/1)",
    }


# ----------------------------------------------------------------------------------------------------------

_BLOCK = 1 << 14
"""Bytes of a block: its records should fit into the caches, which halves the time of megabytes."""

_OPS = re.compile(rb'"ops"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_STAND_IN = b'[{"name": "(the ops)"}]'
_NONE = array("q", [UNSET])
_MOST = 2**63 - 1
_AMOUNTS = ("flops", "bytes_read", "bytes_written", "duration_ns", "stage", "micro_batch")
_WORDS = ("kind", "dtype", "device", "phase")
_ROWS = ("outputs", "inputs", "after")
_MAPPINGS = ("attributes", "duration_by_kind_ns")
_KEYS = {"name", *_AMOUNTS, *_WORDS, *_ROWS, *_MAPPINGS}


class _UnusualError(Exception):
    """The exact reader has to look at this file."""


def read_columns(content: bytes) -> tuple[GraphFileRecord, dict[str, Any]] | None:
    """Return what a file holds besides its ops, and the ops as the arguments of `GraphBuilder.extend`.

    None where the exact reader is needed.
    """
    found = _OPS.search(content)
    end = content.rfind(b"]")
    if found is None or end < found.end():
        return None
    try:
        file = FILE.validate_json(content[: found.end() - 1] + _STAND_IN + content[end + 1 :])
        _need(file["ops"] == from_json(_STAND_IN) and "functions" not in file)
        columns = _Columns(tensor["name"] for tensor in file.get("tensors", []))
        for begin, stop in _blocks(content, found.end(), end):
            columns.add(from_json(b"[%b]" % content[begin:stop], cache_strings="keys"))
        return file, columns.arguments()
    except (_UnusualError, KeyError, TypeError, ValueError, OverflowError):
        return None


def _blocks(content: bytes, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield where blocks begin and end, between the records of a list."""
    while (cut := _BETWEEN.search(content, min(begin + _BLOCK, end), end)) is not None:
        yield begin, cut.start() + 1
        begin = cut.end() - 1
    yield begin, end


class _Columns:
    """What the records say so far.

    A reference is the number of an op, or -2 - k for external tensor k, or -1 for what `later` names.

    Parameters
    ----------
    externals : iterable of str
        Names of the tensors that no op produces.
    """

    def __init__(self, externals: Iterable[str]) -> None:
        # A key that is no string makes Python keep hashes in the dict; else it asks each string on its way.
        self._number: dict[Any, int] = {(): UNSET, **{name: -2 - k for k, name in enumerate(externals)}}
        self._others = list(self._number)
        self._n_ops = 0
        self._with_colon = [name for name in self._others if ":" in name]
        # An entry an op (a number, the code of a word, how long a row is), and those of all rows together.
        self._columns = {key: array("q") for key in (*_AMOUNTS, *_WORDS, *_ROWS)}
        self._codes = {key: _Codes() for key in _WORDS}
        self._entries = {key: array("q") for key in _ROWS}
        self._later: dict[str, dict[int, str]] = {key: {} for key in _ROWS}
        self._distant: dict[str, dict[int, int]] = {key: {} for key in _ROWS}
        self._mappings: dict[str, dict[int, Any]] = {key: {} for key in _MAPPINGS}

    def add(self, records: list[dict[str, Any]]) -> None:
        """Add the records of a block."""
        keys = set().union(*records)
        _need({"name"} <= keys <= _KEYS)
        before = self._n_ops
        self._n_ops += len(records)
        names = list(map(itemgetter("name"), records))
        if ":" in "".join(names):
            self._with_colon += [name for name in names if ":" in name]
        self._number.update(zip(names, range(before, self._n_ops), strict=True))
        _need(len(self._number) == len(self._others) + self._n_ops)
        for key, column in self._columns.items():
            if key in keys:
                column.extend(_NONE * (before - len(column)))
                column.fromlist(self._column(key, records))
        for key in keys.intersection(_MAPPINGS):
            for op, mapping in enumerate(_values(key, dict, {}, records), before):
                if mapping:
                    self._mappings[key][op] = mapping

    def _column(self, key: str, records: list[dict[str, Any]]) -> list[int]:
        """Return the entries of a key."""
        if key in _WORDS:
            code = self._codes[key].__getitem__
            try:
                return list(map(code, map(itemgetter(key), records)))
            except KeyError:
                return [code(record.get(key, ())) for record in records]
        if key in _AMOUNTS:
            amounts = _values(key, int, UNSET, records)
            _need(min(amounts) >= 0 or min(record.get(key, 0) for record in records) >= 0)
            return amounts
        rows = _values(key, list, (), records)
        flat = list(chain.from_iterable(rows))
        if key == "outputs":
            _need(set(map(type, flat)) <= {int} and min(flat, default=0) >= 0)
        else:
            flat = self._references(flat, len(self._entries[key]), self._later[key], self._distant[key])
        self._entries[key].fromlist(flat)
        return list(map(len, rows))

    def _references(
        self, names: list[Any], before: int, later: dict[int, str], distant: dict[int, int]
    ) -> list[int]:
        """Return the numbers of names, or of [name, distance]."""
        number = self._number
        try:
            return list(map(number.__getitem__, names))
        except (KeyError, TypeError):  # a name that comes later; a list is no key of a dict
            found = []
        for k, name in enumerate(names, before):
            if type(name) is list:
                name, distance = name
                _need(type(distance) is int and 0 <= distance <= _MOST)
                distant[k] = distance
            if name not in number:
                _need(type(name) is str)
                later[k] = name
            found.append(number.get(name, UNSET))
        return found

    def arguments(self) -> dict[str, Any]:
        """Return the ops as `GraphBuilder.extend` takes them, now that all names are known."""
        number = self._number
        _need("" not in number)
        for name in self._with_colon:
            made = split_output(name)
            _need(made is None or made[0] not in number)  # what it means depends on where it is read
        columns: dict[str, Any] = {}
        for key, column in self._columns.items():
            if not column:  # nothing is stored for a key that no record has
                columns[key] = np.broadcast_to(UNSET, self._n_ops)
                continue
            column.extend(_NONE * (self._n_ops - len(column)))
            columns[key] = np.asarray(column)
        columns["flops"] = np.maximum(columns["flops"], 0)
        _need(not self._codes["kind"].keys() & FUNCTIONAL_KINDS.keys())
        if (columns["kind"] == UNSET).any():
            columns["kind"] = np.where(columns["kind"] == UNSET, self._codes["kind"]["op"], columns["kind"])
        words = {key: (list(codes)[1:], columns.pop(key)) for key, codes in self._codes.items()}
        n_sizes, n_inputs, n_after = (np.maximum(columns.pop(key), 0) for key in _ROWS)
        sizes, read, followed = (np.asarray(self._entries[key]) for key in _ROWS)

        n_outputs = np.maximum(n_sizes, 1)
        first = np.cumsum(n_outputs) - n_outputs
        nbytes = np.zeros(int(n_outputs.sum()), np.int64)
        nbytes[np.repeat(n_sizes > 0, n_outputs)] = sizes

        def output(name: str) -> int:
            known = number.get(name)
            if known is not None:
                return int(first[known]) if known >= 0 else known
            base, k = split_output(name) or (name, 0)
            op = number.get(base, UNSET)
            _need(op >= 0 and k < n_outputs[op])
            return int(first[op]) + k

        np.copyto(read, first.take(read, mode="clip"), where=read >= 0)
        for position, name in self._later["inputs"].items():
            read[position] = output(name)
        for position, name in self._later["after"].items():
            followed[position] = number[name]
        _need(not (followed < 0).any())  # an input is not followed
        by_kind: dict[str, dict[int, int]] = {}
        for op, mapping in self._mappings["duration_by_kind_ns"].items():
            for kind, ns in mapping.items():
                _need(kind != "" and type(ns) is int and 0 <= ns <= _MOST)
                by_kind.setdefault(kind, {})[op] = ns
        for other in self._others:
            del number[other]
        return {
            "names": number,
            **words,
            **columns,
            "inputs": Csr.of_counts(n_inputs, read),
            "input_distance": self._distances("inputs"),
            "after": Csr.of_counts(n_after, followed),
            "after_distance": self._distances("after"),
            "outputs": Csr.of_counts(n_outputs, nbytes),
            "duration_by_kind": by_kind,
            "attributes": self._mappings["attributes"],
        }

    def _distances(self, key: str) -> IntArray:
        out = np.zeros(len(self._entries[key]), np.int64)
        out[list(self._distant[key])] = list(self._distant[key].values())
        return out


class _Codes(dict[Any, int]):
    """The words of a column, numbered in the order in which they appear; () stands for none."""

    def __init__(self) -> None:
        super().__init__({(): UNSET})

    def __missing__(self, word: str) -> int:
        _need(type(word) is str and word != "")
        return self.setdefault(word, len(self) - 1)


def _values(key: str, kind: type, absent: object, records: list[dict[str, Any]]) -> list[Any]:
    """Return the value of each record, which has to be of a kind where there is one."""
    try:
        found = list(map(itemgetter(key), records))
    except KeyError:
        _need(all(type(record[key]) is kind for record in records if key in record))
        return [record.get(key, absent) for record in records]
    _need(set(map(type, found)) == {kind})
    return found


def _need(usual: bool) -> None:
    if not usual:
        raise _UnusualError
