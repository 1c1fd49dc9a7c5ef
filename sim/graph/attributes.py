"""Attributes of ops that have an effect: their types, read once, before anything runs.

::

    attributes: {granule: 4kB, strict: false}   ──► typed ──►   {granule: 4000, strict: False}
    attributes: {strict: 'no'}                  ──► op 'a': strict: 'no' is neither true nor false

`sim.graph.builder.GraphBuilder.build` reads them, so users of an attribute can rely on its type. Any other
attribute may have any value: importers keep those of the original operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from sim.base.errors import GraphError, InputError
from sim.base.units import LARGEST, parse_bytes, parse_duration
from sim.graph.failures import has_probability, read_fails
from sim.graph.graph import Graph


def whole(value: Any, least: int = 0) -> int:
    """Return `value` if it is a whole number of at least `least`, or raise `InputError`."""
    if type(value) is not int or value < least:
        raise InputError(f"{value!r} is no whole number of at least {least}")
    if value > LARGEST:
        raise InputError(f"{value} is more than 2**63 - 1")
    return value


def _counts(value: Any, least: int = 0) -> Any:
    """Read a count, or a list of them."""
    if not isinstance(value, list | tuple) or not value:
        return whole(value, least)
    usual = (
        type(value) is list and {*map(type, value)} == {int} and least <= min(value) <= max(value) <= LARGEST
    )
    return value if usual else [whole(one, least) for one in value]


def _outcome(value: Any) -> Any:
    listed = value if isinstance(value, list | tuple) else [value]
    if (listed and all(isinstance(one, bool) for one in listed)) or has_probability(value):
        return value
    raise InputError(f"{value!r} is no outcome; give true, false, a list of them or {{probability: p}}")


def integer(value: Any) -> int:
    """Return `value` if it is a whole number, or raise `InputError`."""
    if type(value) is not int or abs(value) > LARGEST:
        raise InputError(f"{value!r} is no whole number of 64 bits")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{value!r} is no number")
    return value


def _names(value: Any) -> list[str]:
    """Read a name, or a list of them."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str) and one for one in listed):
        raise InputError(f"{value!r} is neither a name nor a list of names")
    return list(listed)


def _by_name(subject: str, read: Callable[[Any], int]) -> Callable[[Any], dict[str, int]]:
    """Return the reader of a number for each of several names."""

    def by_name(value: Any) -> dict[str, int]:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise InputError(f"{value!r} does not say {subject}")
        return {name: read(number) for name, number in value.items()}

    return by_name


def _quantity(value: Any, parse: Callable[..., int], least: int = 0) -> int:
    return whole(parse(value, what="") if isinstance(value, str) else value, least)


def _fraction(value: Any) -> Any:
    if not 0 < _number(value) <= 1:
        raise InputError(f"{value!r} is no number in (0, 1]")
    return value


def word(value: Any) -> str:
    """Return `value` if it is a non-empty text, or raise `InputError`."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{value!r} is no word; accepted: text")
    return value


def flag(value: Any) -> bool:
    """Return `value` if it is true or false, or raise `InputError`."""
    if not isinstance(value, bool):
        raise InputError(f"{value!r} is neither true nor false")
    return value


_count: Final = partial(whole, least=1)
_size: Final = partial(_quantity, parse=parse_bytes)

_SIZES: Final = """m n k batch transposed rows columns seq_len kv_len heads kv_heads head_dim causal window
    in_channels out_channels input_shape kernel_shape strides pads dilations group operands"""
SIZES: Final = frozenset(_SIZES.split())
"""Attributes that give the size of an op, whichever importer wrote them."""

READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    name: read
    for read, names in (
        (flag, "strict constant own_frame expensive blocking async begins_batch stateful training_mode"),
        (flag, "host_waits pageable"),
        (word, "body then else cond frame key session data_format communicator peer root"),
        (whole, "inter_op_thread_pool session_step view_of pair communicates_ns weight"),
        (_count, "parallel_iterations blocks_per_sm sms cores tiles"),
        (integer, "stream_id"),
        (lambda value: word(value) if isinstance(value, str) else whole(value), "stream"),
        (_number, "priority"),
        (_fraction, "sm_fraction"),
        (partial(_quantity, parse=parse_duration), "release due"),
        (_size, "nbytes dram_bytes"),
        (partial(_size, least=1), "granule"),
        (_names, "colocate resident"),
        (lambda value: _counts([value] if type(value) is int else value), "no_gradient"),
        (partial(_counts, least=1), "grid"),
        (_counts, "trips"),
        (_outcome, "outcome"),
        (read_fails, "fails"),
        (_by_name("how many bytes go to which device, as {gpu1: 4MB}", _size), "sends"),
        (_by_name("how much of which resource is taken, as {crane: 1}", _count), "resources"),
    )
    for name in names.split()
}
"""Name → function that reads the value, or raises `InputError`."""


def convert_attributes(graph: Graph) -> Graph:
    """Return the graph with the attributes named in `READERS` converted to their types.

    Raises
    ------
    GraphError
        The error names the op and its attribute.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("one")
    >>> _ = b.op("a", attributes={"granule": "4kB", "colocate": "b", "axis": 1})
    >>> dict(b.build().attributes[0])
    {'granule': 4000, 'colocate': ['b'], 'axis': 1}
    """
    converted: dict[int, Mapping[str, Any]] = {}
    by_id: dict[int, Mapping[str, Any]] = {}  # copies of a program share theirs
    for op, attributes in graph.attributes.items():
        if id(attributes) in by_id:
            if by_id[id(attributes)] is not attributes:
                converted[op] = by_id[id(attributes)]
            continue
        by_id[id(attributes)] = attributes
        read = {}
        for name in [name for name in attributes if name in READERS]:
            try:
                value = READERS[name](attributes[name])
            except InputError as error:
                where = graph.op_names[op]
                raise GraphError(f"op {where!r}: {name}: {error}").about(where, name) from None
            if value is not attributes[name]:
                read[name] = value
        if read:
            converted[op] = by_id[id(attributes)] = {**attributes, **read}
    return replace(graph, attributes={**graph.attributes, **converted}) if converted else graph
