"""The ops of a graph file as columns: a block of records at a time, checked by sets and arrays.

::

    {"schema": ..., "tensors": [...], "ops": [{...}, {...}, | {...}, {...}, | {...}]}
     ─────────────────────────────────────── ────────────────────────────── ──
     skeleton, with one op as a stand-in      blocks, cut where an op ends   skeleton

A block is a JSON list of its own, so that a million records never lie in memory at once. Where anything
is out of the ordinary (a wrong type, an unknown name, functions, growth with the batch), the file is left
to the exact reader (`scenarios.importers.neutral.graph_json`), which reads it or words the error.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
from pydantic_core import from_json

from scenarios.importers.neutral.graph_file import GraphFile, OpRecord, checked
from scenarios.ops.functions import FUNCTIONAL_KINDS
from sim.graph.builder import GraphBuilder
from sim.graph.csr import Csr
from sim.words.arrays import UNSET, IntArray

__all__ = ["read_columns"]

_BLOCK = 1 << 14
"""Bytes of a block: its records should fit into the caches, which halves the time of megabytes."""

_OPS = re.compile(rb'"ops"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_STAND_IN = b'[{"name": "(the ops)"}]'
_ABSENT = ()  # JSON has no tuples
_MOST = 2**63 - 1
_KEYS = OpRecord.__annotations__.keys() - {"per_sample"}
_AMOUNTS = ("flops", "bytes_read", "bytes_written", "duration_ns", "stage", "micro_batch")
_WORDS = ("kind", "dtype", "device", "phase")


class _UnusualError(Exception):
    """The exact reader has to look at this file."""


def read_columns(content: bytes) -> tuple[GraphFile, _Columns] | None:
    """Return what a file holds besides its ops, and the ops; None where the exact reader is needed."""
    found = _OPS.search(content)
    end = content.rfind(b"]")
    if found is None or end < found.end():
        return None
    try:
        file = checked(content[: found.end() - 1] + _STAND_IN + content[end + 1 :])
        if file["ops"] != from_json(_STAND_IN) or "functions" in file:
            return None
        columns = _Columns(tensor["name"] for tensor in file.get("tensors", []))
        for begin, stop in _blocks(content, found.end(), end):
            columns.add(from_json(b"[%b]" % content[begin:stop], cache_strings="keys"))
        columns.resolve()
    except (_UnusualError, TypeError, ValueError, OverflowError):
        return None
    return file, columns


def _blocks(content: bytes, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield where blocks begin and end, between the records of a list."""
    while (cut := _BETWEEN.search(content, min(begin + _BLOCK, end), end)) is not None:
        yield begin, cut.start() + 1
        begin = cut.end() - 1
    yield begin, end


class _Columns:
    """What the records say so far, as `GraphBuilder.extend` takes it.

    Parameters
    ----------
    externals : iterable of str
        Names of the tensors that no op produces.
    """

    def __init__(self, externals: Iterable[str]) -> None:
        self._number = {name: -2 - k for k, name in enumerate(externals)}
        self._n_external = len(self._number)
        self.names: list[str] = []
        self._amounts = {key: array("q") for key in _AMOUNTS}
        self._words = {key: _Words() for key in _WORDS}
        self._sizes, self._inputs, self._after = _Rows(), _References(), _References()
        self._by_kind: dict[str, dict[int, int]] = {}
        self._attributes: dict[int, Any] = {}

    def add(self, records: list[dict[str, Any]]) -> None:
        """Add the records of a block."""
        _need(set(map(type, records)) == {dict})
        keys = set().union(*records)
        _need(keys <= _KEYS)
        before, n = len(self.names), len(records)

        def values(key: str, kind: type, absent: object = _ABSENT) -> list[Any]:
            """Return one value a record."""
            if key not in keys:
                return [absent] * n
            found = [record.get(key, absent) for record in records]
            _need(set(map(type, found)) <= {kind, type(absent)})
            return found

        names = values("name", str)
        _need(_ABSENT not in names and "" not in names)
        self.names += names
        self._number.update(zip(names, range(before, before + n), strict=True))
        _need(len(self._number) == self._n_external + before + n)
        for key, column in self._amounts.items():
            amounts = values(key, int, UNSET)
            if key in keys and min(amounts) < 0:
                _need(min(record.get(key, 0) for record in records) >= 0)
            column.fromlist(amounts)
        for key, words in self._words.items():
            words.add(values(key, str, "op" if key == "kind" else _ABSENT))
        self._sizes.add(values("outputs", list))
        self._inputs.refer(values("inputs", list), self._number)
        self._after.refer(values("after", list), self._number)
        if "duration_by_kind_ns" in keys:
            self._add_durations(before, values("duration_by_kind_ns", dict))
        if "attributes" in keys:
            given = values("attributes", dict)
            self._attributes.update((op, row) for op, row in enumerate(given, before) if row)

    def _add_durations(self, before: int, rows: list[dict[str, Any]]) -> None:
        for op, row in enumerate(rows, before):
            for kind, ns in row.items() if row else ():
                _need(kind != "" and type(ns) is int and 0 <= ns <= _MOST)
                self._by_kind.setdefault(kind, {})[op] = ns

    def resolve(self) -> None:
        """Give every reference its number, now that all names are known."""
        for name in self.names:
            if ":" in name:
                base, _, k = name.rpartition(":")
                _need(not (k.isdigit() and base in self._number))  # what it means depends on where it is read
        _need(not self._words["kind"].keys() & FUNCTIONAL_KINDS.keys())
        self._at_least_one = np.maximum(self._sizes.row_counts(), 1)
        first = np.cumsum(self._at_least_one) - self._at_least_one
        n_outputs = self._at_least_one.tolist()

        def output(name: str) -> int:
            number = self._number.get(name)
            if number is not None:
                return int(first[number]) if number >= 0 else number
            base, colon, k = name.rpartition(":")
            op = self._number.get(base, UNSET)
            _need(bool(colon) and k.isdigit() and op >= 0 and int(k) < n_outputs[op])
            return int(first[op]) + int(k)

        def control(name: str) -> int:
            _need(self._number.get(name, UNSET) >= 0)
            return self._number[name]

        entries = self._inputs.numbers()
        self._read = np.where(entries >= 0, first[np.maximum(entries, 0)], entries)
        for position, name in self._inputs.later.items():
            self._read[position] = output(name)
        self._followed = self._after.numbers()
        for position, name in self._after.later.items():
            self._followed[position] = control(name)
        _need(not (self._followed < 0).any())  # an input is not followed

    def write(self, builder: GraphBuilder) -> None:
        """Add the ops to a builder that has the external tensors."""
        amounts: dict[str, Any] = {key: np.array(column) for key, column in self._amounts.items()}
        amounts["flops"] = np.maximum(amounts["flops"], 0)
        words: dict[str, Any] = {
            key: (list(words)[1:], np.array(words.codes)) for key, words in self._words.items()
        }
        sizes = np.zeros(int(self._at_least_one.sum()), np.int64)
        sizes[np.repeat(self._sizes.row_counts() > 0, self._at_least_one)] = self._sizes.numbers()
        builder.extend(
            self.names,
            **words,
            **amounts,
            inputs=Csr(_bounds(self._inputs.row_counts()), self._read),
            input_distance=self._inputs.distances(),
            after=Csr(_bounds(self._after.row_counts()), self._followed),
            after_distance=self._after.distances(),
            outputs=Csr(_bounds(self._at_least_one), sizes),
            duration_by_kind=self._by_kind,
            attributes=self._attributes,
        )


class _Words(dict[Any, int]):
    """The words of a column, numbered in the order in which they appear, and their numbers."""

    def __init__(self) -> None:
        super().__init__({_ABSENT: UNSET})
        self.codes = array("q")

    def __missing__(self, word: str) -> int:
        _need(word != "")
        return self.setdefault(word, len(self) - 1)

    def add(self, words: list[Any]) -> None:
        """Add one word an op."""
        self.codes.extend(map(self.__getitem__, words))


class _Rows:
    """Rows of whole numbers, one row an op."""

    def __init__(self) -> None:
        self._row_counts, self._numbers = array("q"), array("q")

    def add(self, rows: list[Any]) -> None:
        """Add rows of amounts."""
        flat = list(chain.from_iterable(rows))
        _need(set(map(type, flat)) <= {int} and min(flat, default=0) >= 0)
        self._extend(rows, flat)

    def _extend(self, rows: list[Any], numbers: list[int]) -> None:
        self._row_counts.extend(map(len, rows))
        self._numbers.fromlist(numbers)

    def row_counts(self) -> IntArray:
        return np.array(self._row_counts)

    def numbers(self) -> IntArray:
        return np.array(self._numbers)


class _References(_Rows):
    """Rows of references: numbers of ops, or -2 - k for external tensor k, or -1 for what `later` names."""

    def __init__(self) -> None:
        super().__init__()
        self.later: dict[int, str] = {}
        self._distant: dict[int, int] = {}

    def refer(self, rows: list[Any], number: dict[str, int]) -> None:
        """Add rows of names, or of [name, distance]."""
        before, names = len(self._numbers), list(chain.from_iterable(rows))
        kinds = set(map(type, names))
        _need(kinds <= {str, list})
        if list in kinds:
            for position, reference in enumerate(names):
                if type(reference) is list:
                    _need(len(reference) == 2)
                    name, distance = reference
                    _need(type(name) is str and type(distance) is int and 0 <= distance <= _MOST)
                    names[position], self._distant[before + position] = name, distance
        _need("" not in names)
        found = [number.get(name, UNSET) for name in names]
        if UNSET in found:
            unknown = ((k, name) for k, name in enumerate(names) if found[k] == UNSET)
            self.later.update((before + k, name) for k, name in unknown)
        self._extend(rows, found)

    def distances(self) -> IntArray:
        out = np.zeros(len(self._numbers), np.int64)
        out[list(self._distant)] = list(self._distant.values())
        return out


def _need(usual: bool) -> None:
    if not usual:
        raise _UnusualError


def _bounds(counts: IntArray) -> IntArray:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
