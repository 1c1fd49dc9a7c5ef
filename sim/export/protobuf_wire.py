"""Protocol buffers without the library: fields of a message as bytes, in the order of their numbers.

A key ``number << 3 | wire type``, then a varint (0), eight bytes (1), or a length and so many bytes (2):
https://protobuf.dev/programming-guides/encoding/. The reader is `scenarios.importers.chakra.protobuf_wire`.
"""

from __future__ import annotations

from functools import cache
from typing import Final

__all__ = ["fixed64", "message", "number", "text", "varint"]


def varint(value: int) -> bytes:
    """Return a number in groups of seven bits, least first; a negative one in 64 bits.

    Examples
    --------
    >>> varint(150).hex(), len(varint(-1))
    ('9601', 10)
    """
    if 0 <= value < 0x80:
        return _SMALL[value]
    if 0 <= value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    value &= 0xFFFF_FFFF_FFFF_FFFF
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


_SMALL: Final = [bytes((value,)) for value in range(0x80)]


@cache
def _key(field: int, wire: int) -> bytes:
    return varint(field << 3 | wire)


def number(field: int, value: int) -> bytes:
    """Return a field with an integer, an enumeration or a truth value."""
    return _key(field, 0) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """Return a field with an integer of eight bytes."""
    return _key(field, 1) + value.to_bytes(8, "little")


def message(field: int, content: bytes) -> bytes:
    """Return a field with a message in it."""
    return _key(field, 2) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    r"""Return a field with text.

    Examples
    --------
    >>> text(2, "hi")
    b'\x12\x02hi'
    """
    return message(field, value.encode())
