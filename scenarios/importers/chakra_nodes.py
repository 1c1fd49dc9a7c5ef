"""The messages of a Chakra trace, as plain rows: nodes with their dependencies, times and tensors.

A file is a sequence of protobuf messages: one of metadata, then one per node
(https://github.com/mlcommons/chakra, ``schema/protobuf/et_def.proto``).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from scenarios.importers.files import parts
from scenarios.importers.tensor_flow import Tensor
from sim.base.arrays import LATEST_NS
from sim.base.errors import InputError, in_file
from sim.base.files import StrPath, read_bytes

# ----------------------------------------------------------------------------------------------------------
# Protocol buffers without the library: fields of a message as (number, wire type, value).
#
# Enough for small schemas, so that a format that uses them costs no dependency. The encoding is
# that of https://protobuf.dev/programming-guides/encoding/: a key ``number << 3 | wire type``, then a
# varint (0), eight bytes (1), a length and that many bytes (2), or four bytes (5).


def fields(message: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield number, wire type and value of each field of a message.

    Raises
    ------
    InputError
        The bytes are not a message.

    Examples
    --------
    >>> list(fields(bytes([0x08, 0x96, 0x01, 0x12, 0x02, 0x68, 0x69])))
    [(1, 0, 150), (2, 2, b'hi')]
    """
    pos, end = 0, len(_bytes(message))
    while pos < end:
        key, pos = (message[pos], pos + 1) if message[pos] < 0x80 else _varint(message, pos)
        wire = key & 7
        value: int | bytes
        if wire == 0 or wire == 2:
            short = pos < end and message[pos] < 0x80
            number, pos = (message[pos], pos + 1) if short else _varint(message, pos)
            value, size = number, number if wire == 2 else 0
        elif wire == 1 or wire == 5:
            size = 8 if wire == 1 else 4
        else:
            raise InputError(f"a protobuf field has the wire type {wire}, which does not exist")
        if wire:
            if pos + size > end:
                raise InputError("a protobuf message ends in the middle of a field")
            value, pos = message[pos : pos + size], pos + size
        yield key >> 3, wire, value


def delimited_messages(content: bytes) -> Iterator[bytes]:
    """Yield the messages of a file in which each follows its length, given as a varint.

    Raises
    ------
    InputError
        The file ends in the middle of a message.
    """
    pos = 0
    while pos < len(content):
        size, pos = _varint(content, pos)
        if pos + size > len(content):
            raise InputError("the file ends in the middle of a message")
        yield content[pos : pos + size]
        pos += size


def read_varints(value: int | bytes) -> list[int]:
    """Return a repeated field of varints, packed or not."""
    if isinstance(value, int):
        return [value]
    numbers, pos = [], 0
    while pos < len(value):
        number, pos = _varint(value, pos)
        numbers.append(number)
    return numbers


def as_signed(value: Any) -> int:
    """Return an int64 from its two's complement in 64 bits."""
    number = last_number([value])
    return number - 2**64 if number >= 2**63 else number


def members(message: bytes) -> defaultdict[int, list[Any]]:
    """Return the values of a message's fields, in order, by number of field."""
    by_number: defaultdict[int, list[Any]] = defaultdict(list)
    for number, _, value in fields(message):
        by_number[number].append(value)
    return by_number


def last_number(values: list[Any], otherwise: int = 0) -> int:
    """Return the last value of a field, which should be a number, without a sign."""
    value = values[-1] if values else otherwise
    if isinstance(value, bytes):
        raise InputError("a protobuf field that should be a number is none")
    return int(value)


def last_text(values: list[Any]) -> str:
    """Return the last value of a field as text."""
    return _bytes(values[-1]).decode(errors="replace") if values else ""


def _bytes(value: Any) -> bytes:
    """Return a text or message; raise if the field is a number."""
    if not isinstance(value, bytes):
        raise InputError("a protobuf field that should be a text or message is a number")
    return value


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    """Return a varint (groups of seven bits, least significant first) and the position after it."""
    number = 0
    for shift in range(0, 70, 7):
        if pos >= len(data):
            raise InputError("a protobuf message ends in the middle of a number")
        byte = data[pos]
        pos += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, pos
    raise InputError("a protobuf number has more than ten bytes")


# ----------------------------------------------------------------------------------------------------------

_TYPES: Final = (
    "metadata", "mem_load", "mem_store", "comp", "send", "recv", "collective", "storage", "batch",
    "checkpoint",
)  # fmt: skip
"""Types of node, numbered from 1."""
_COMP: Final = 4

_TENSOR: Final = re.compile(r"\[(\d+), (\d+), \d+, (\d+), (\d+), '([^']*)'\]")
"""A tensor in the recorded inputs and outputs: id, storage, offset, elements, bytes per element, device."""

_BOOL, _STRING, _BOOLS = 27, 29, 28
"""Fields of an attribute; all other varints are whole numbers."""

_ZIGZAG, _FIXED = (15, 17), (19, 21, 23, 25)
"""Whole numbers in other encodings: ``sint32``, ``sint64``; four or eight bytes, the last two signed."""


@dataclass
class ChakraNode:
    """One node, as recorded.

    Attributes
    ----------
    id : int
        Default 0, which proto3 does not write.
    name, type : str
        `type` is ``"comp"``, ``"collective"``, ``"send"``, ...
    ctrl_deps, data_deps : list of int
        Ids of other nodes.
    start_ns : int or None
        If the trace has it; few converters write it.
    duration_ns : int
    reads, writes : list of Tensor
        Recorded inputs and outputs.
    values : str
        The inputs, as recorded.
    attributes : dict
        Numbers, texts and lists of truth values.
    """

    id: int = 0
    name: str = ""
    type: str = "comp"
    ctrl_deps: list[int] = field(default_factory=list)
    data_deps: list[int] = field(default_factory=list)
    start_ns: int | None = None
    duration_ns: int = 0
    reads: list[Tensor] = field(default_factory=list)
    writes: list[Tensor] = field(default_factory=list)
    values: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def on_host(self) -> bool:
        """Whether it is an op of the host."""
        return bool(self.attributes.get("is_cpu_op", False))

    def amount(self, name: str) -> int:
        """Return an attribute that is a positive number; 0 if it is not there, or anything else."""
        value = self.attributes.get(name)
        return max(0, value) if type(value) is int else 0


def read_nodes(path: StrPath) -> list[ChakraNode]:
    """Return the nodes of a trace, in the order of the file.

    Raises
    ------
    InputError
        There is no such file, or it is not a Chakra trace.
    """
    content = read_bytes(path)
    with in_file(f"{path}: not a Chakra trace"):
        nodes = [_read_node(message) for message in [*delimited_messages(content)][1:]]
    if not nodes:
        raise InputError(f"{path}: not a Chakra trace: no node in it")
    return nodes


def process_groups(nodes: list[ChakraNode]) -> dict[str, list[int]]:
    """Return the ranks of each process group declared in a trace of PyTorch; an empty list means all."""
    ranks_of: dict[str, list[int]] = {}
    for node in nodes:
        if "process_group:init" in node.name:
            begin, end = node.values.find("[{"), node.values.rfind("}]")
            with suppress(ValueError, TypeError, KeyError, RecursionError):  # from another version
                for group in json.loads(node.values[begin : end + 2].replace('\\"', '"')):
                    ranks_of[str(group["pg_name"])] = [int(rank) for rank in group["ranks"]]
    return ranks_of


def arguments(values: str) -> list[list[Tensor]]:
    """Return the tensors of each argument, from the recorded inputs.

    Examples
    --------
    >>> arguments("[[1, 2, 0, 8, 4, 'cuda:0'], 5, [[3, 4, 0, 2, 4, 'cuda:0'], [6, 7, 0, 1, 4, 'cpu']]]")[2]
    [Tensor(storage=('cuda:0', 4), nbytes=8), Tensor(storage=('cpu', 7), nbytes=4)]
    """
    return [[*_tensors(part)] for part in parts(values[1:])]


def _read_node(message: bytes) -> ChakraNode:
    values = members(message)
    kind, inputs = last_number(values[3], _COMP), _values(values[8])
    node = ChakraNode(
        last_number(values[1]),
        last_text(values[2]),
        _TYPES[kind - 1] if 0 < kind <= len(_TYPES) else f"type{kind}",
        ctrl_deps=[*chain.from_iterable(map(read_varints, values[4]))],
        data_deps=[*chain.from_iterable(map(read_varints, values[5]))],
        start_ns=_ns(last_number(values[6]), "starts at") if values[6] else None,
        duration_ns=_ns(last_number(values[7]), "takes"),
        reads=[*_tensors(inputs)],
        writes=[*_tensors(_values(values[9]))],
        values=inputs,
    )
    for attribute in values[10]:
        _read_attribute(attribute, node.attributes)
    return node


def _ns(microseconds: int, verb: str) -> int:
    if 1000 * microseconds > LATEST_NS:
        raise InputError(f"a node that {verb} {microseconds} us")
    return 1000 * microseconds


def _values(messages: list[Any]) -> str:
    """Return the values in the last ``IOInfo`` message."""
    return last_text(members(messages[-1])[1]) if messages else ""


def _tensors(values: str) -> Iterator[Tensor]:
    for _, storage, elements, size, device in _TENSOR.findall(values):
        if len(elements) + len(size) > 18:
            raise InputError(f"a tensor of {elements[:20]} elements of {size[:20]} bytes")
        yield Tensor((device, int(storage[:18])), int(elements) * int(size))


def _read_attribute(message: bytes, attributes: dict[str, Any]) -> None:
    """Add an ``AttributeProto`` that holds a whole number, a truth value, several of these, or a text."""
    name = ""
    for number, wire, value in fields(message):
        if number == 1:
            name = last_text([value])
        elif wire == 0 and isinstance(value, int):
            plain = value >> 1 ^ -(value & 1) if number in _ZIGZAG else as_signed(value)
            attributes[name] = bool(value) if number == _BOOL else plain
        elif number in _FIXED and isinstance(value, bytes):
            attributes[name] = int.from_bytes(value, "little", signed=number in (23, 25))
        elif number == _STRING:
            attributes[name] = last_text([value])
        elif number == _BOOLS and isinstance(value, bytes):
            attributes[name] = [bool(flag) for _, _, part in fields(value) for flag in read_varints(part)]
