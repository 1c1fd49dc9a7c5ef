"""What may be said of a device, a link, a host and a machine: one table each, and how it is read.

A description is a plain mapping, as a scenario file or a preset gives it. These tables are the only
place where its keys are defined; the scenario schema, `sim devices` and the readers below all use them::

    {"kind": "gpu", "launch_latency": "4us"} --read_fields--> {"kind": "gpu", "launch_latency": 4000}
                                              + DEVICE_FIELDS

Quantities have a unit and are read by `sim.units`; counts are whole numbers. What is not given is not in
the result, and means the ideal: no limit, no loss, no overhead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from devices.memory.spec import read_allocator
from sim import units
from sim.errors import InputError, UnknownNameError

__all__ = [
    "DEFAULT",
    "DEVICE_FIELDS",
    "HOST_FIELDS",
    "LINK_FIELDS",
    "MACHINE_FIELDS",
    "TYPES",
    "Field",
    "merge",
    "read_fields",
]

DEFAULT: Final = "default"
"""In a quantity that differs by kind of op or by dtype: the value of all that are not named."""


@dataclass(frozen=True)
class Field:
    """One key that a description may have.

    Attributes
    ----------
    name : str
    type : str
        Key of `TYPES`, which says how a value is read and what one looks like.
    doc : str
        What it means, and what leaving it out means, in one line.
    kinds : tuple of str
        Kinds of device that have it; empty: all.
    overhead : bool
        An overhead or loss that real devices have and ideal ones do not: ``ideal: true`` drops it.
    choices : tuple of str
        The words it may be; empty: any.
    """

    name: str
    type: str
    doc: str
    kinds: tuple[str, ...] = ()
    overhead: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Type:
    """How values of some type are read.

    Attributes
    ----------
    read : callable
        ``read(value, what)`` returns the value in base units or raises `InputError`.
    shown : str
        What one looks like, for help and messages.
    by_key : bool
        Whether a mapping of keys (kinds of op, dtypes) to such values is accepted too.
    """

    read: Callable[[object, str], Any]
    shown: str
    by_key: bool = False


def _count(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{what}: {value!r} is not a count; accepted: a whole number without a unit")
    if value < 0:
        raise InputError(f"{what}: {value} is negative")
    return value


def _positive(value: object, what: str) -> int:
    count = _count(value, what)
    if count == 0:
        raise InputError(f"{what}: it must be at least 1")
    return count


def _flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{what}: {value!r} is neither true nor false")
    return value


def _word(value: object, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(f"{what}: {value!r} is not a word")
    return value


def _share(value: object, what: str) -> Fraction:
    """Read a fraction exactly: 0.1 is one tenth, not the binary number next to it."""
    share = Fraction(repr(units.parse_fraction(value, what=what)))
    if share == 0:
        raise InputError(f"{what}: it must be more than 0")
    return share


def _part(value: object, what: str) -> Fraction:
    return Fraction(repr(units.parse_fraction(value, what=what)))


def _factor(value: object, what: str) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise InputError(f"{what}: {value!r} is not a number of at least 0")
    return Fraction(repr(value))


def _integer(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{what}: {value!r} is not a whole number")
    return value


def _list_of(read: Callable[[object, str], Any]) -> Callable[[object, str], tuple[Any, ...]]:
    def read_list(value: object, what: str) -> tuple[Any, ...]:
        if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
            raise InputError(f"{what}: {value!r} is not a list")
        return tuple(read(item, f"{what}[{i}]") for i, item in enumerate(value))

    return read_list


def _mapping(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{what}: {value!r} is not a mapping")
    return {_word(key, f"{what}: key"): item for key, item in value.items()}


def _curve(value: object, what: str) -> dict[int, Fraction]:
    if not isinstance(value, Mapping) or not value:
        raise InputError(f"{what}: {value!r} is not a mapping of cores to speed-up, as in {{1: 1, 4: 3.4}}")
    return {_positive(k, f"{what}: cores"): _factor(v, f"{what}.{k}") for k, v in sorted(value.items())}


def _counts(value: object, what: str) -> dict[str, int]:
    return {key: _positive(item, f"{what}.{key}") for key, item in _mapping(value, what).items()}


def _anything(value: object, what: str) -> object:
    return value


def _limit(parse: Callable[..., int]) -> Callable[[object, str], int | None]:
    return lambda value, what: units.parse_limit(value, parse, what=what)


TYPES: Final[Mapping[str, Type]] = {
    "duration": Type(lambda v, what: units.parse_duration(v, what=what), "10us"),
    "duration by kind": Type(lambda v, what: units.parse_duration(v, what=what), "10us", by_key=True),
    "bytes": Type(_limit(units.parse_bytes), "80GiB"),
    "bytes by kind": Type(lambda v, what: units.parse_bytes(v, what=what), "1MB", by_key=True),
    "bandwidth": Type(_limit(units.parse_bandwidth), "1.5TB/s"),
    "flops by kind": Type(lambda v, what: units.parse_flops(v, what=what), "1GFLOP", by_key=True),
    "flop rate by dtype": Type(_limit(units.parse_flop_rate), "989TFLOP/s", by_key=True),
    "frequency": Type(lambda v, what: units.parse_frequency(v, what=what), "1.98GHz"),
    "fraction": Type(_share, "0.8 or 80%"),
    "fraction by kind": Type(_share, "0.8 or 80%", by_key=True),
    "part": Type(_part, "0.1 or 10%"),
    "factor": Type(_factor, "0.2"),
    "count": Type(_count, "4"),
    "positive count": Type(_positive, "4"),
    "flag": Type(_flag, "true"),
    "word": Type(_word, "fp32"),
    "words": Type(_list_of(_word), "[matmul, conv]"),
    "integers": Type(_list_of(_integer), "[0, -1]"),
    "curve": Type(_curve, "{1: 1, 2: 1.9, 4: 3.4}"),
    "counts by name": Type(_counts, "{a: 64, b: 68}"),
    "allocator": Type(read_allocator, "caching, or {name: caching, malloc: 150us}"),
    "mapping": Type(_mapping, "{...}"),
    "anything": Type(_anything, "..."),
}
"""How the types of `Field.type` are read. Those "by" something also take a mapping with `DEFAULT`."""

_CPU, _GPU, _NPU = ("cpu",), ("gpu",), ("npu",)

_DEVICE = [
    Field("preset", "word", "take what is known of this device; every other key then overrides"),
    Field("kind", "word", "cpu, gpu or npu; any other word is a device with streams and nothing else"),
    Field("ideal", "flag", "drop every overhead and loss of the preset"),
    Field("description", "word", "what it is, in one line"),
    Field("sources", "mapping", "where each number comes from; not used for anything else"),
    Field("count", "positive count", "this many such devices, called name0, name1, ...; default one"),
    # -- who issues and how many run at once
    Field("cores", "positive count", "cores of a CPU, or of an NPU", ("cpu", "npu")),
    Field("inter_op", "positive count", "worker threads that run ops; default cores / intra_op", _CPU),
    Field("intra_op", "positive count", "cores that one op uses; default 1", _CPU),
    Field("cores_per_op", "positive count", "cores that one op uses; cores / cores_per_op queues", _NPU),
    Field("serial_fraction", "part", "part of an op that more cores do not speed up (Amdahl)", _CPU, True),
    Field("speedup", "curve", "speed-up by cores, in place of serial_fraction; linear in between", _CPU),
    Field(
        "oversubscription_cost",
        "factor",
        "what each thread per core beyond the first adds to the time of all ops; 0 is fair time slicing",
        _CPU,
        True,
    ),
    Field("streams", "positive count", "queues whose tasks start in order; default 1", ("gpu", "other")),
    Field("stream_priorities", "integers", "priority of each stream, lower first, 0 when left out", _GPU),
    # -- overheads of issuing
    Field("issue_cost", "duration by kind", "what issuing an op costs its issuer", overhead=True),
    Field(
        "launch_latency", "duration", "from being put on an idle stream to the earliest start", overhead=True
    ),
    Field("gap", "duration", "least time between two tasks of a stream", overhead=True),
    Field(
        "event_hop", "duration", "from a task's end to one on another stream that waits for it", overhead=True
    ),
    Field(
        "graph_launch",
        "duration",
        "what launching a CUDA graph costs; default the cost of one op",
        _GPU,
        True,
    ),
    Field("graph_gap", "duration", "least time between two kernels of a CUDA graph; default gap", _GPU, True),
    Field("legacy_stream", "flag", "the first stream is CUDA's legacy default stream", _GPU),
    Field(
        "queue_depth",
        "positive count",
        "launches outstanding before the issuer blocks; default no limit",
        (),
        True,
    ),
    # -- what an op costs
    Field("peak", "flop rate by dtype", "arithmetic rate for dense data; default no limit"),
    Field("default_dtype", "word", "dtype of ops that name none; default fp32"),
    Field("bandwidth", "bandwidth", "of the device's memory; default no limit"),
    Field("core_bandwidth", "bandwidth", "what one core can draw; default its share of bandwidth", _CPU),
    Field("efficiency", "fraction by kind", "part of the peak rate that large ops reach", overhead=True),
    Field(
        "memory_efficiency", "fraction by kind", "part of the bandwidth that large ops reach", overhead=True
    ),
    Field("half_flops", "flops by kind", "work at which half of that rate is reached", overhead=True),
    Field("half_bytes", "bytes by kind", "traffic at which half of that bandwidth is reached", overhead=True),
    Field("op_overhead", "duration by kind", "time on the device that every op takes besides", overhead=True),
    Field("cost", "anything", "roofline (default), {fixed: ...}, {table: ...}, or a list tried in turn"),
    Field("supports", "words", "kinds of op that it can run; default all"),
    # -- what its tasks share
    Field(
        "sharing",
        "word",
        "what concurrent ops compete for: cores or time slices of a CPU, SMs (and DRAM) of a GPU",
        ("cpu", "gpu"),
        choices=("none", "cores", "time", "sm", "sm+dram"),
    ),
    Field("sms", "positive count", "streaming multiprocessors", _GPU),
    Field("use_sms", "positive count", "use only so many of them; peak is cut in proportion", _GPU),
    Field("sm_fraction", "fraction", "use only this part of them", _GPU),
    Field("partitions", "counts by name", "split the SMs: SMs of each partition (green contexts)", _GPU),
    Field("stream_partitions", "words", "partition of each stream; default in turn", _GPU),
    Field("partition_step", "positive count", "partitions are multiples of this many SMs", _GPU),
    Field("max_resident", "positive count", "kernels resident at once; default 128", _GPU),
    Field("blocks_per_sm", "positive count", "blocks of a kernel that fit on one SM; default 1", _GPU),
    # -- memory and copies
    Field("memory", "bytes", "capacity; default unlimited"),
    Field("memory_fraction", "fraction", "use only this part of the memory"),
    Field("allocator", "allocator", "who manages the memory; default: bytes are counted, no more"),
    Field("l2", "bytes", "second-level cache", ("cpu", "gpu")),
    Field("scratchpad", "bytes", "software-managed memory of a core", _NPU),
    Field(
        "copy_engines",
        "positive count",
        "1: one transfer at a time; 2: one in each direction; default no limit",
        _GPU,
    ),
    Field("dma_engines", "positive count", "the same for the DMA engines of an NPU", _NPU),
    Field("clock", "frequency", "of its cores; for information"),
]

DEVICE_FIELDS: Final[Mapping[str, Field]] = {field.name: field for field in _DEVICE}
"""Every key of a device, in the order in which help shows them."""

LINK_FIELDS: Final[Mapping[str, Field]] = {
    field.name: field
    for field in [
        Field("name", "word", "default: from->to"),
        Field("from", "word", "device, or pattern such as gpu*: one link for each"),
        Field("to", "word", "device, or pattern such as gpu*: one link for each"),
        Field("latency", "duration", "time before the first byte arrives; default 0", overhead=True),
        Field("bandwidth", "bandwidth", "one way; default no limit"),
        Field(
            "efficiency", "fraction", "part of the bandwidth that transfers reach; default all", overhead=True
        ),
        Field(
            "sharing",
            "word",
            "serial: one transfer after another (default); shared: max-min fair",
            choices=("serial", "shared"),
        ),
        Field("duplex", "flag", "a link of the same kind in each direction; default true"),
        Field("source", "word", "where its numbers come from; not used for anything else"),
    ]
}
"""Every key of a link."""

HOST_FIELDS: Final[Mapping[str, Field]] = {
    field.name: field
    for field in [
        Field("serves", "words", "devices on which it launches ops; patterns such as gpu* may be used"),
        Field("threads", "positive count", "host threads; default 1"),
    ]
}
"""Every key of a host."""

MACHINE_FIELDS: Final[Mapping[str, Field]] = {
    field.name: field
    for field in [
        Field("preset", "word", "take a known machine; the other keys then override or add"),
        Field("ideal", "flag", "drop every overhead and loss of all devices and links"),
        Field("description", "word", "what it is, in one line"),
        Field("sources", "mapping", "where the numbers come from; not used for anything else"),
        Field("devices", "mapping", "name to device"),
        Field("links", "anything", "list of links; without any, transfers take no time"),
        Field("hosts", "mapping", "name to host; default one host thread a device without workers"),
    ]
}
"""Every key of a machine."""


def read_fields(spec: object, fields: Mapping[str, Field], what: str) -> dict[str, Any]:
    """Read a description into base units: integers in ns, bytes, flop, and per second.

    Parameters
    ----------
    spec : mapping
        The description.
    fields : mapping of str to Field
        Which keys there are.
    what : str
        What is described, the beginning of an error message.

    Returns
    -------
    dict
        The keys that were given, in the order of `fields`, with their values read. One that may differ
        by kind of op or dtype is always a dict, with the key `DEFAULT` for a plain value.

    Raises
    ------
    UnknownNameError
        A key that does not exist.
    InputError
        A value that cannot be read.

    Examples
    --------
    >>> read_fields({"gap": "1.5us", "issue_cost": "4us", "streams": 2}, DEVICE_FIELDS, "gpu0")
    {'streams': 2, 'issue_cost': {'default': 4000}, 'gap': 1500}
    >>> read_fields({"gap": 1500}, DEVICE_FIELDS, "gpu0")
    Traceback (most recent call last):
        ...
    sim.errors.UnitError: gpu0.gap: 1500 has no unit; accepted: ns, us, ms, s, min, h, as in '10us'
    """
    given = _mapping(spec, what)
    for name in given:
        if name not in fields:
            raise UnknownNameError(f"key of {what}", name, fields)
    return {
        name: _read(field, given[name], f"{what}.{name}") for name, field in fields.items() if name in given
    }


def _read(field: Field, value: object, what: str) -> Any:
    type_ = TYPES[field.type]
    if not type_.by_key:
        read = type_.read(value, what)
    elif isinstance(value, Mapping):
        read = {key: type_.read(item, f"{what}.{key}") for key, item in _mapping(value, what).items()}
    else:
        read = {DEFAULT: type_.read(value, what)}
    if field.choices and read not in field.choices:
        raise UnknownNameError(what, str(read), field.choices)
    return read


def merge(
    base: Mapping[str, Any], over: Mapping[str, Any], fields: Mapping[str, Field], *, ideal: bool = False
) -> dict[str, Any]:
    """Return `base` with the keys of `over` in place of its own.

    A quantity that may differ by kind of op or dtype is merged key by key, so that
    ``issue_cost: {matmul: 6us}`` leaves the cost of other kinds as it was. `ideal` first drops what
    `base` says of overheads and losses; what `over` says still counts.

    Examples
    --------
    >>> merge({"issue_cost": "4us", "gap": "1us"}, {"issue_cost": {"matmul": "6us"}}, DEVICE_FIELDS)
    {'issue_cost': {'default': '4us', 'matmul': '6us'}, 'gap': '1us'}
    """
    merged = dict(base)
    if ideal:
        merged = {
            name: value for name, value in merged.items() if name not in fields or not fields[name].overhead
        }
    for name, value in over.items():
        old = merged.get(name)
        by_key = name in fields and TYPES[fields[name].type].by_key
        if by_key and old is not None and isinstance(value, Mapping):
            merged[name] = {**(old if isinstance(old, Mapping) else {DEFAULT: old}), **value}
        else:
            merged[name] = value
    return merged
