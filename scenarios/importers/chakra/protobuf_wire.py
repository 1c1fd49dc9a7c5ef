"""Protocol buffers without the library: fields of a message as (number, wire type, value).

Enough to read small schemas, so that a format that uses them costs no dependency. The encoding is
that of https://protobuf.dev/programming-guides/encoding/: a key ``number << 3 | wire type``, then a
varint (0), eight bytes (1), a length and so many bytes (2), or four bytes (5).
"""

from __future__ import annotations

from collections.abc import Iterator

from sim.words.errors import InputError

__all__ = ["delimited", "fields", "packed", "signed", "text"]


def fields(message: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield number, wire type and value of each field of a message.

    Raises
    ------
    InputError
        The bytes are no message.

    Examples
    --------
    >>> list(fields(bytes([0x08, 0x96, 0x01, 0x12, 0x02, 0x68, 0x69])))
    [(1, 0, 150), (2, 2, b'hi')]
    """
    at, end = 0, len(message)
    while at < end:
        key, at = (message[at], at + 1) if message[at] < 0x80 else _varint(message, at)
        wire = key & 7
        value: int | bytes
        if wire == 0 or wire == 2:
            short = at < end and message[at] < 0x80
            number, at = (message[at], at + 1) if short else _varint(message, at)
            value, size = number, number if wire == 2 else 0
        elif wire == 1 or wire == 5:
            size = 8 if wire == 1 else 4
        else:
            raise InputError(f"a protobuf field has the wire type {wire}, which does not exist")
        if wire:
            if at + size > end:
                raise InputError("a protobuf message ends in the middle of a field")
            value, at = message[at : at + size], at + size
        yield key >> 3, wire, value


def delimited(content: bytes) -> Iterator[bytes]:
    """Yield the messages of a file in which each follows its length, as a varint.

    Raises
    ------
    InputError
        The file ends in the middle of one.
    """
    at = 0
    while at < len(content):
        size, at = _varint(content, at)
        if at + size > len(content):
            raise InputError("the file ends in the middle of a message")
        yield content[at : at + size]
        at += size


def packed(value: int | bytes) -> list[int]:
    """Return a repeated field of varints, packed or not."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        found.append(number)
    return found


def signed(value: int) -> int:
    """Return an int64, which is written as two's complement in 64 bits."""
    return value - 2**64 if value >= 2**63 else value


def text(value: int | bytes) -> str:
    """Return a string field.

    Raises
    ------
    InputError
        It is no string.
    """
    if isinstance(value, int):
        raise InputError("a protobuf field that should be text is a number")
    return value.decode(errors="replace")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number in groups of seven bits, least first, and where the next field begins."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise InputError("a protobuf message ends in the middle of a number")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise InputError("a protobuf number has more than ten bytes")
