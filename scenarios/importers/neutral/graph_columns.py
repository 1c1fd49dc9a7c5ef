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
from operator import itemgetter
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
    except (_UnusualError, KeyError, TypeError, ValueError, OverflowError):
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
        self._externals = list(self._number)
        self._n_ops = 0
        self._amounts = {key: _Column(UNSET) for key in _AMOUNTS}
        self._words = {"kind": _Words("op"), "dtype": _Words(), "device": _Words(), "phase": _Words()}
        self._sizes, self._inputs, self._after = _Rows(), _References(), _References()
        self._rows = {"outputs": self._sizes, "inputs": self._inputs, "after": self._after}
        self._by_kind: dict[str, dict[int, int]] = {}
        self._attributes: dict[int, Any] = {}

    def add(self, records: list[dict[str, Any]]) -> None:
        """Add the records of a block."""
        _need(set(map(type, records)) == {dict})
        keys = set().union(*records)
        _need(keys <= _KEYS)
        before, n = self._n_ops, len(records)

        def values(key: str, kind: type, absent: object = _ABSENT) -> list[Any]:
            """Return one value a record."""
            try:
                found = list(map(itemgetter(key), records))
                _need(set(map(type, found)) == {kind})
            except KeyError:
                found = [record.get(key, absent) for record in records]
                _need(set(map(type, found)) <= {kind, type(absent)})
            return found

        names = [record["name"] for record in records]
        _need(set(map(type, names)) == {str})
        self._number.update(zip(names, range(before, before + n), strict=True))
        self._n_ops += n
        _need(len(self._number) == len(self._externals) + self._n_ops)
        for key in keys & self._amounts.keys():
            amounts = values(key, int, UNSET)
            if min(amounts) < 0:
                _need(min(record.get(key, 0) for record in records) >= 0)
            self._amounts[key].add(before, amounts)
        for key in keys & self._words.keys():
            self._words[key].add(before, [record.get(key, _ABSENT) for record in records])
        for key in keys & self._rows.keys():
            self._rows[key].add(before, values(key, list), self._number)
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
        _need("" not in self._number)
        for name in self._number:
            if ":" in name:
                base, _, k = name.rpartition(":")
                _need(not (k.isdigit() and base in self._number))  # what it means depends on where it is read
        _need(not self._words["kind"].keys() & FUNCTIONAL_KINDS.keys())
        self._n_sizes = self._sizes.counts.all(self._n_ops)
        self._at_least_one = np.maximum(self._n_sizes, 1)
        first = np.cumsum(self._at_least_one) - self._at_least_one

        def output(name: str) -> int:
            number = self._number.get(name)
            if number is not None:
                return int(first[number]) if number >= 0 else number
            base, colon, k = name.rpartition(":")
            op = self._number.get(base, UNSET)
            _need(bool(colon) and k.isdigit() and op >= 0 and int(k) < self._at_least_one[op])
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
        n = self._n_ops
        amounts: dict[str, Any] = {key: column.all(n) for key, column in self._amounts.items()}
        amounts["flops"] = np.maximum(amounts["flops"], 0)
        words: dict[str, Any] = {
            key: ([word for word in words if word != _ABSENT], words.codes.all(n))
            for key, words in self._words.items()
        }
        sizes = np.zeros(int(self._at_least_one.sum()), np.int64)
        sizes[np.repeat(self._n_sizes > 0, self._at_least_one)] = self._sizes.numbers()
        for external in self._externals:
            del self._number[external]
        builder.extend(
            self._number,
            **words,
            **amounts,
            inputs=Csr(_bounds(self._inputs.counts.all(n)), self._read),
            input_distance=self._inputs.distances(),
            after=Csr(_bounds(self._after.counts.all(n)), self._followed),
            after_distance=self._after.distances(),
            outputs=Csr(_bounds(self._at_least_one), sizes),
            duration_by_kind=self._by_kind,
            attributes=self._attributes,
        )


class _Column:
    """A whole number an op; `absent` where a record has none."""

    def __init__(self, absent: int) -> None:
        self._absent, self._numbers = array("q", [absent]), array("q")

    def add(self, before: int, numbers: list[int]) -> None:
        """Add the numbers of some ops, of which there are so many before."""
        self._numbers.extend(self._absent * (before - len(self._numbers)))
        self._numbers.fromlist(numbers)

    def all(self, n: int) -> IntArray:
        """Return the numbers of all the ops that there are."""
        self.add(n, [])
        return np.asarray(self._numbers)


class _Words(dict[Any, int]):
    """The words of a column, numbered in the order in which they appear, and their numbers.

    Parameters
    ----------
    *default : str
        The word where a record has none.
    """

    def __init__(self, *default: str) -> None:
        super().__init__(dict.fromkeys((*default, _ABSENT), len(default) - 1))
        self.codes = _Column(self[_ABSENT])

    def __missing__(self, word: str) -> int:
        _need(type(word) is str and word != "")
        return self.setdefault(word, len(self) - 1)

    def add(self, before: int, words: list[Any]) -> None:
        """Add one word an op."""
        self.codes.add(before, list(map(self.__getitem__, words)))


class _Rows:
    """Rows of whole numbers, one row an op."""

    def __init__(self) -> None:
        self.counts, self._numbers = _Column(0), array("q")

    def add(self, before: int, rows: list[Any], number: dict[str, int]) -> None:
        """Add the rows of some ops, of which there are so many before; `number` is that of a name."""
        self.counts.add(before, list(map(len, rows)))
        self._numbers.fromlist(self._read(list(chain.from_iterable(rows)), number))

    def _read(self, amounts: list[Any], number: dict[str, int]) -> list[int]:
        _need(set(map(type, amounts)) <= {int} and min(amounts, default=0) >= 0)
        return amounts

    def numbers(self) -> IntArray:
        return np.asarray(self._numbers)


class _References(_Rows):
    """Rows of references: numbers of ops, or -2 - k for external tensor k, or -1 for what `later` names."""

    def __init__(self) -> None:
        super().__init__()
        self.later: dict[int, str] = {}
        self._distant: dict[int, int] = {}

    def _read(self, names: list[Any], number: dict[str, int]) -> list[int]:
        """Return the numbers of names, or of [name, distance]."""
        before, found = len(self._numbers), list[Any]()
        try:
            found += map(number.get, names)
        except TypeError:  # a list is no key of a dict
            for k, reference in enumerate(names):
                if type(reference) is list:
                    names[k], distance = reference
                    _need(type(distance) is int and 0 <= distance <= _MOST)
                    self._distant[before + k] = distance
            found = list(map(number.get, names))
        if None in found:
            for k, name in enumerate(names):
                if found[k] is None:
                    _need(type(name) is str)
                    found[k], self.later[before + k] = UNSET, name
        return found

    def distances(self) -> IntArray:
        out = np.zeros(len(self._numbers), np.int64)
        out[list(self._distant)] = list(self._distant.values())
        return out


def _need(usual: bool) -> None:
    if not usual:
        raise _UnusualError


def _bounds(counts: IntArray) -> IntArray:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
