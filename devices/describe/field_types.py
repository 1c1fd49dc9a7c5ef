"""How the values in a device's description are read: one reader a type, with an example of each.

``devices.describe.fields`` names a type for every key; here is what a value of that type may be::

    TYPES["duration"].read("10us")  ->  10000
    TYPES["flag"].read("yes")       ->  InputError: 'yes' is neither true nor false
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Annotated, Any, Final

from annotated_types import Ge
from pydantic_core import PydanticCustomError

from devices.describe.dtypes import DTYPES
from sim.base import plugins, units
from sim.base.errors import InputError, UnknownNameError, error_path
from sim.base.units import BANDWIDTH, BYTES, DURATION, FLOP_RATE, FLOPS, FREQUENCY, POWER, Dimension
from sim.graph.attributes import flag, integer, word
from sim.machine.device import Power

# ----------------------------------------------------------------------------------------------------------
# Data types: a closed list of names, spellings and bits an element (`devices.describe.dtypes`).
#
#     dtype: torch.bfloat16  ──dtype_name──►  bf16      peak: {bf16: 989TFLOP/s}
#     dtype: bf61            ──dtype_name──►  unknown dtype 'bf61'; did you mean 'bf16'?
#
# A package that has more offers their bits an element under the entry-point group ``sim.dtypes``.

BITS: Final[Mapping[str, int]] = {name: row["bits"] for name, row in DTYPES.items() if "bits" in row}
INDICES: Final = frozenset(name for name, row in DTYPES.items() if row.get("index"))
_SPELLED: Final = {word: name for name, row in DTYPES.items() for word in (name, *row.get("also", ()))}


@cache
def _by_spelling(name: str) -> str | None:
    return _SPELLED.get(name.lower().replace("::", ".").rpartition(".")[2])


def sized_dtype(name: str) -> str | None:
    """Return the short name of a data type, as `dtype_name`; None if it, or its size, is unknown.

    Examples
    --------
    >>> [sized_dtype(name) for name in ("FLOAT8E5M2", "c10::Half", "long int", "s32", "string", "f99")]
    ['fp8', 'fp16', 'int64', 'int32', None, None]
    """
    short = _by_spelling(name)
    return short if short in BITS else None


def dtype_name(dtype: str) -> str:
    """Return the short name of a data type: ``"fp32"`` for ``"torch.float32"``, ``"FLOAT"`` and ``"f32"``.

    Raises
    ------
    UnknownNameError
        The name is unknown; the message has the nearest one.

    Examples
    --------
    >>> [dtype_name(name) for name in ("torch.bfloat16", "FLOAT16", "fp32", "int8")]
    ['bf16', 'fp16', 'fp32', 'int8']
    """
    short = _by_spelling(dtype)
    if short is not None:
        return short
    registered = plugins.names("sim.dtypes")
    if dtype in registered:
        return dtype
    raise UnknownNameError("dtype", dtype, [*DTYPES, *registered])


def no_peak(dtype: str, known: Iterable[str]) -> str:
    """Return why an op in a data type cannot be timed, where there is no rate for it, nor one of fp32."""
    stead = "" if dtype == "fp32" else ", nor for fp32, at which others compute"
    return f"no peak is given for {dtype}{stead}; known: {', '.join(known)}"


def dtype_bits(dtype: str) -> int:
    """Return the bits an element takes.

    Raises
    ------
    UnknownNameError
        The data type is unknown.
    """
    return BITS[dtype] if dtype in BITS else int(plugins.lookup("sim.dtypes", dtype))


# ----------------------------------------------------------------------------------------------------------
# Errors of ours inside pydantic's: what a reader of `sim` refuses, pydantic reports in the same words.


def fault(message: str, path: tuple[str | int, ...] = ()) -> PydanticCustomError:
    """Return an error that pydantic reports with exactly this message, and with its path before `path`."""
    return PydanticCustomError("scenario", "{message}", {"message": message, "path": path})


def reader(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `read` with errors of `sim` turned into pydantic's."""

    def read_value(value: Any) -> Any:
        try:
            return read(value)
        except InputError as error:
            raise fault(error.message, error.path) from None

    return read_value


# ----------------------------------------------------------------------------------------------------------

DEFAULT: Final = "default"
"""In a quantity that differs by kind of op or by dtype: the value of all that are not named."""


@dataclass(frozen=True, eq=False)
class Type:
    """How values of some type are read.

    Attributes
    ----------
    read : callable
        ``read(value)`` returns the value in base units or raises `InputError`.
    shown : str
        What one looks like, for help and messages.
    schema : mapping
        Its JSON Schema.
    by_key : bool
        Whether a mapping of keys (kinds of op, dtypes) to such values is accepted too.
    """

    read: Callable[[object], Any]
    shown: str
    schema: Mapping[str, Any]
    by_key: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Return how pydantic, which measuring on a GPU does without, reads such a value."""
        from pydantic_core.core_schema import no_info_before_validator_function

        return no_info_before_validator_function(reader(self.read), handler(source))

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        """Return its JSON Schema."""
        return dict(self.schema)


def quantity_schema(dimension: Dimension, *, unlimited: bool = False) -> dict[str, Any]:
    """Return the JSON Schema of a quantity: a number and one of the dimension's units.

    Examples
    --------
    >>> schema = quantity_schema(DURATION)
    >>> bool(re.search(schema["anyOf"][0]["pattern"], "10us")), schema["anyOf"][1]
    (True, {'const': 0})
    """
    # Longest first, so that a program which stops at the first match finds the whole unit.
    names = sorted(dimension.units, key=lambda unit: (-len(unit), unit))
    number = r"\+?([0-9][0-9_]*\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"
    pattern = rf"^\s*{number}\s*({'|'.join(map(re.escape, names))})\s*$"
    choices: list[dict[str, Any]] = [{"type": "string", "pattern": pattern}]
    if dimension.zero_allowed:
        choices.append({"const": 0})
    if unlimited:
        choices.append({"const": "unlimited"})
    return {"anyOf": choices, "description": f"{dimension.name}: {dimension.shown}"}


def quantity(parse: Callable[..., int], dimension: Dimension, shown: str, *, unlimited: bool = False) -> Type:
    """Return the type of a quantity: a number and a unit, or, where that may be, ``unlimited``."""

    def read(value: object) -> int | None:
        return units.parse_limit(value, parse, what="") if unlimited else parse(value, what="")

    return Type(read, shown, quantity_schema(dimension, unlimited=unlimited))


def by_key(single: Type, name: Callable[[str], str] = str) -> Type:
    """Return the type of a value that may differ by kind of op or dtype; read, it is a mapping.

    Parameters
    ----------
    single : Type
        Of one value.
    name : callable
        Returns the name that a key stands for, or raises `InputError`.
    """

    def read(value: object) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            return {DEFAULT: single.read(value)}
        values: dict[str, Any] = {}
        for spelled, item in read_mapping(value).items():
            key = spelled if spelled == DEFAULT else name(spelled)
            if key in values:
                raise InputError(f"{key} is given twice", path=(spelled,))
            values[key] = read_part(spelled, single.read, item)
        return values

    return Type(read, single.shown, {"anyOf": [single.schema, mapping_of(single.schema)]}, by_key=True)


def mapping_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a mapping to such values."""
    return {"type": "object", "additionalProperties": schema}


def _positive(value: object) -> int:
    if isinstance(value, float) and value.is_integer():  # 1e3
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{value!r} is not a count; accepted: a whole number without a unit")
    if value < 1:
        raise InputError("must be at least 1" if value == 0 else f"{value} is negative")
    return value


def at_most(limit: int) -> Type:
    """Return the type of a count with a bound, so that a typing error is reported and not simulated."""

    def read(value: object) -> int:
        count = _positive(value)
        if count > limit:
            raise InputError(f"{count:,} is more than the {limit:,} that there may be")
        return count

    return Type(read, "4", {**_COUNT, "maximum": limit})


def one_of(*words: str) -> Type:
    """Return the type of a value that is one of these words."""

    def read(value: object) -> str:
        text = str(value)
        if text not in words:
            raise UnknownNameError("word", text, words)
        return text

    return Type(read, " | ".join(words), {"type": "string", "enum": list(words)})


def _choice_type(words: Sequence[str], options: Mapping[str, Type], shown: str, only: str = "") -> Type:
    """Return the type of a value that is one of these words, of which `only` may have options.

    Read, it is a mapping: ``ecmp`` is ``{name: ecmp}``. Without `only` all may have options, even alone.
    """
    plain, full = one_of(*words), keys_of({"name": one_of(*([only] if only else words)), **options}, "")

    def read(value: object) -> Any:
        choice = full.read(value) if isinstance(value, Mapping) else {"name": plain.read(value)}
        if only and "name" not in choice:
            raise InputError(f"has no name; accepted: {shown}")
        return choice

    required = {"required": ["name"]} if only else {}
    return Type(read, shown, {"anyOf": [plain.schema, {**full.schema, **required}]})


def _part(value: object) -> Fraction:
    """Read a fraction exactly: 0.1 is one tenth, not the binary number next to it."""
    return Fraction(repr(units.parse_fraction(value, what="")))


def above_zero(value_type: Type) -> Type:
    """Return the type of such a value that is not 0."""

    def read(value: object) -> Any:
        if not (number := value_type.read(value)):
            raise InputError(f"{value!r} must be more than 0")
        return number

    return replace(value_type, read=read)


def _factor(value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise InputError(f"{value!r} is not a number of at least 0")
    return Fraction(repr(value))


def _count_or_share(value: object) -> int | Fraction:
    """Read a count (a whole number) or a share (a percentage, or a number up to 1 with a point)."""
    return _positive(value) if isinstance(value, int) else _FRACTION.read(value)


def read_list(value: object, noun: str = "list") -> Sequence[Any]:
    """Return a list as it is."""
    if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
        raise InputError(f"{value!r} is not a {noun}")
    return value


def _list_of(item_type: Type, shown: str) -> Type:
    def read(value: object) -> tuple[Any, ...]:
        return tuple(read_part(i, item_type.read, item) for i, item in enumerate(read_list(value)))

    return Type(read, shown, {"type": "array", "items": item_type.schema})


def read_mapping(value: object) -> dict[str, Any]:
    """Read a mapping whose keys are words."""
    if not isinstance(value, Mapping):
        raise InputError(f"{value!r} is not a mapping")
    return {word(key): item for key, item in value.items()}


def read_part(part: str | int, read: Callable[[object], Any], value: object) -> Any:
    """Read a part of a value; a mistake in it has its key, or index."""
    with error_path(part):
        return read(value)


def _curve(value: object) -> dict[int, Fraction]:
    if not isinstance(value, Mapping) or not value:
        raise InputError(f"{value!r} is not a mapping of cores to speed-up, as in {{1: 1, 4: 3.4}}")
    read = {}
    for key, item in value.items():  # keys of YAML are text, cores are numbers
        cores = int(key) if isinstance(key, str) and key.isdecimal() else key
        read[_positive(cores)] = read_part(str(key), above_zero(_FACTOR).read, item)
    return dict(sorted(read.items()))


def _streams(value: object) -> Any:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return _LANES.read(value)
    _LANES.read(len(value))
    return _EACH_STREAM.read(value)


def _by_name(value_type: Type, noun: str, shown: str) -> Type:
    """Return the type of a mapping of names of one's own to such values: at least one."""

    def read(value: object) -> dict[str, Any]:
        if not isinstance(value, Mapping) or not value:
            raise InputError(f"{value!r} is no mapping of names to {noun}, as in {shown}")
        return {key: read_part(key, value_type.read, item) for key, item in read_mapping(value).items()}

    return Type(read, shown, mapping_of(value_type.schema))


def keys_of(types: Mapping[str, Type], shown: str, *, by_key: bool = False) -> Type:
    """Return a mapping that has these keys at most."""

    def read(value: object) -> dict[str, Any]:
        mapping = read_mapping(value)
        for key in mapping:
            if key not in types:
                raise UnknownNameError("key", key, types)
        return {key: read_part(key, types[key].read, item) for key, item in mapping.items()}

    properties = {key: value_type.schema for key, value_type in types.items()}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return Type(read, shown, schema, by_key)


def _power(value: object) -> Power:
    power = Power(**_BUSY_AND_IDLE.read(value))
    if power.busy < power.idle:
        raise InputError("a device draws no less when it is busy than when it is idle")
    return power


def _duplex(value: object) -> bool | str:
    if value != HALF and not isinstance(value, bool):
        raise InputError(f"{value!r} is none of true, false and half")
    return value


HALF: Final = "half"
"""Of a link's duplex: both directions share what one has."""

_SHARE: Final = {"type": ["number", "string"]}
_COUNT: Final = {"type": "integer", "minimum": 1}

_DURATION: Final = quantity(units.parse_duration, DURATION, "10us")
_BUSY_AND_IDLE: Final = keys_of(
    dict.fromkeys(Power._fields, quantity(units.parse_power, POWER, "300W")), "{busy: 300W, idle: 60W}"
)
_SIZE: Final = quantity(units.parse_bytes, BYTES, "4MB")
_FLOPS: Final = quantity(units.parse_flops, FLOPS, "1GFLOP")
_WORD: Final = Type(word, "a word", {"type": "string"})
_DTYPE: Final = Type(lambda value: dtype_name(word(value)), "bf16", {"type": "string"})
_INTEGER: Final = Type(integer, "0", {"type": "integer"})
_FACTOR: Final = Type(_factor, "0.2", {"type": "number", "minimum": 0})
_FRACTION: Final = above_zero(Type(_part, "0.8 or 80%", _SHARE))

_GENERATIONS: Final = (
    "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell", "blackwell_ultra", "blackwell_rtx",
    "cdna", "cdna2", "cdna3",
)  # fmt: skip
"""Generations of GPUs with kernel fits of their own (`devices.cost.kernel_fits`)."""

_PEAK: Final = by_key(quantity(units.parse_flop_rate, FLOP_RATE, "989TFLOP/s", unlimited=True), dtype_name)
_CAPACITY: Final = quantity(units.parse_bytes, BYTES, "80GiB", unlimited=True)
_WORDS: Final = _list_of(_WORD, "[matmul, conv]")
MOST_LANES: Final = 65_536
"""Most cores, streams or host threads of one device: more than any has."""

_LANES: Final = at_most(MOST_LANES)
_EACH_STREAM: Final = _list_of(
    keys_of({"priority": _INTEGER, "partition": _WORD}, "{priority: -1}"), "[{priority: 0}, {priority: -1}]"
)

TYPES: Final[Mapping[str, Type]] = {
    "duration": _DURATION,
    "duration by kind": by_key(_DURATION),
    "size": _SIZE,
    "bytes": _CAPACITY,
    "rate": quantity(units.parse_bandwidth, BANDWIDTH, "1.5TB/s"),
    "bandwidth": quantity(units.parse_bandwidth, BANDWIDTH, "1.5TB/s", unlimited=True),
    "flops": _FLOPS,
    "flop rate": quantity(units.parse_flop_rate, FLOP_RATE, "989TFLOP/s"),
    "flop rate by dtype": _PEAK,
    "matrix unit": keys_of(
        {"peak": _PEAK, "block_size": Type(_positive, "16", _COUNT), "kinds": _WORDS},
        "{peak: {fp16: 256TFLOP/s}, block_size: 16}",
        by_key=True,
    ),
    "vector unit": keys_of({"peak": _PEAK, "scratchpad": _CAPACITY}, "{peak: {fp16: 8TFLOP/s}}", by_key=True),
    "frequency": quantity(units.parse_frequency, FREQUENCY, "1.98GHz"),
    "power": replace(_BUSY_AND_IDLE, read=_power),
    "graph launch": keys_of(dict.fromkeys(("issue_cost", "gap"), _DURATION), "{issue_cost: 10us, gap: 1us}"),
    "dtype": _DTYPE,
    "dtypes": _list_of(_DTYPE, "[bf16, fp16]"),
    "fraction": _FRACTION,
    "fraction by kind": by_key(_FRACTION),
    "fraction by dtype": by_key(_FRACTION, dtype_name),
    "generation": one_of(*_GENERATIONS),
    "part": Type(_part, "0.1 or 10%", _SHARE),
    "factor": _FACTOR,
    "positive count": Type(_positive, "4", _COUNT),
    "number of devices": at_most(16_384),  # the largest machines that train one model have about as many
    "number of lanes": _LANES,
    "streams": Type(_streams, "4", {"anyOf": [_LANES.schema, _EACH_STREAM.schema]}),
    "count or unlimited": Type(
        lambda value: units.parse_limit(value, lambda count, what: _positive(count)),
        "4 or unlimited",
        {"anyOf": [_COUNT, {"const": "unlimited"}]},
    ),
    "count or share": Type(_count_or_share, "66 or 50%", {"type": ["integer", "number", "string"]}),
    "flag": Type(flag, "true", {"type": "boolean"}),
    "word": _WORD,
    "device sharing": one_of("none", "cores", "time", "sm", "sm+dram"),
    "link sharing": _choice_type(
        ("serial", "shared", "fifo", "independent", "instant"),
        {"chunk": above_zero(_SIZE)},
        "serial | shared | fifo | independent | instant, or {name: fifo, chunk: 1MiB}",
        only="fifo",
    ),
    "duplex": Type(_duplex, "true, false or half", {"enum": [True, False, HALF]}),
    "transport": _choice_type(
        ("local", "rdma", "tcp"),
        {
            "fixed": _DURATION,
            "bandwidth": quantity(units.parse_bandwidth, BANDWIDTH, "1.5TB/s", unlimited=True),
            "host_copies": Type(flag, "true", {"type": "boolean"}),
        },
        "local | rdma | tcp, or {name: tcp, fixed: 10us}",
    ),
    "routing": _choice_type(
        ("shortest", "ecmp"), {"seed": _INTEGER}, "shortest or ecmp or {name: ecmp, seed: 1}", only="ecmp"
    ),
    "words": _WORDS,
    "contents": _list_of(one_of("gap"), "[gap]"),
    "curve": Type(_curve, "{1: 1, 2: 1.9, 4: 3.4}", {"type": "object"}),
    "counts by name": _by_name(Type(_positive, "4", _COUNT), "counts", "{a: 64, b: 68}"),
    "sizes": _by_name(_SIZE, "sizes", "{train: 50GB, serve: 20GB}"),
    "mapping": Type(read_mapping, "{...}", {"type": "object"}),
    "anything": Type(lambda value: value, "...", {}),
}
"""The types of values in files. Those "by" something also take a mapping with `DEFAULT`."""

Duration = Annotated[int, TYPES["duration"]]
"""A duration, in ns once read."""

Bytes = Annotated[int, TYPES["size"]]
"""An amount of data, in bytes once read."""

Alignment = Annotated[Bytes, Ge(1)]
"""Bytes of which addresses and sizes are multiples."""

Flops = Annotated[int, TYPES["flops"]]
"""An amount of computation, in flop once read."""

Bandwidth = Annotated[int, TYPES["rate"]]
"""Bytes a second."""

FlopRate = Annotated[int, TYPES["flop rate"]]
"""Flop a second."""

Sizes = Annotated[Mapping[Any, int], TYPES["sizes"]]
"""Amounts of data by name, in bytes once read."""
