"""The keys of a device, a link, a given route, a host and a machine, and how a description is read by them.

::

    {"kind": "gpu", "launch_latency": "4us"} --read_fields--> {"kind": "gpu", "launch_latency": 4000}
                                              + DEVICE_FIELDS

A description is a plain mapping from a scenario file or a preset. Its keys are defined in ``keys.yaml``
alone, one table for each sort of thing; the scenario schema and `sim devices` use them, too. Quantities have
a unit and are read by `sim.base.units`; counts are whole numbers. What is not given is not in the result, and
means the ideal: no limit, no loss, no overhead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from devices.describe.field_types import DEFAULT, TYPES, read_mapping, read_part
from devices.presets import yaml_beside
from sim.base import plugins
from sim.base.errors import UnknownNameError, error_path


class Field(NamedTuple):
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
    example : str
        What a value looks like, where that is not what its type looks like.
    """

    name: str
    type: str
    doc: str
    kinds: tuple[str, ...] = ()
    overhead: bool = False
    example: str = ""

    @property
    def shown(self) -> str:
        """What a value looks like, for help and messages."""
        return self.example or TYPES[self.type].shown


def _table(name: str) -> Mapping[str, Field]:
    rows = _KEYS[name].items()
    return {key: Field(key, **{**row, "kinds": tuple(row.get("kinds", ()))}) for key, row in rows}


_KEYS: Final = yaml_beside(__file__, "keys.yaml")

DEVICE_FIELDS: Final = _table("device")
LINK_FIELDS: Final = _table("link")
ROUTE_FIELDS: Final = _table("route")
HOST_FIELDS: Final = _table("host")
MACHINE_FIELDS: Final = _table("machine")


def read_fields(spec: object, fields: Mapping[str, Field], *path: str | int) -> dict[str, Any]:
    """Read a description into base units: integers in ns, bytes, flop, and per second.

    Parameters
    ----------
    spec : mapping
        The description.
    fields : mapping of str to Field
        Which keys there are.
    *path : str and int
        Where the description stands: the beginning of an error's path.

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
    sim.base.errors.UnitError: gpu0.gap: 1500 has no unit; accepted: ns, us, ms, s, min, h, d, as in '10us'
    """
    with error_path(*path):
        keys = read_mapping(spec)
        for name in keys:
            if name not in fields:
                raise UnknownNameError("key", name, fields)
        return {
            name: read_part(name, TYPES[field.type].read, keys[name])
            for name, field in fields.items()
            if name in keys
        }


def merge(
    base: Mapping[str, Any], changes: Mapping[str, Any], fields: Mapping[str, Field], *, ideal: bool = False
) -> dict[str, Any]:
    """Return `base` with the keys of `changes` in place of its own.

    A quantity that may differ by kind of op or dtype is merged key by key, so that
    ``issue_cost: {matmul: 6us}`` leaves the cost of other kinds as it was. `ideal` first drops what
    `base` says of overheads and losses; what `changes` says still counts.

    Examples
    --------
    >>> merge({"issue_cost": "4us", "gap": "1us"}, {"issue_cost": {"matmul": "6us"}}, DEVICE_FIELDS)
    {'issue_cost': {'default': '4us', 'matmul': '6us'}, 'gap': '1us'}
    """
    lost = {name for name in base if ideal and name in fields and fields[name].overhead}
    merged = {name: value for name, value in base.items() if name not in lost}
    for name, value in changes.items():
        by_key = name in fields and TYPES[fields[name].type].by_key
        merged[name] = _merge_value(merged.get(name), value) if by_key else value
    return merged


def _merge_value(old: Any, value: Any) -> Any:
    if old is None or not isinstance(value, Mapping):
        return value
    base = old if isinstance(old, Mapping) else {DEFAULT: old}
    return {**base, **{key: _merge_value(base.get(key), item) for key, item in value.items()}}


def value_at(values: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key, as ``matrix.peak`` of one inside another; None where it is not given."""
    name, _, inner = key.partition(".")
    outer = values.get(name)
    return value_at(outer, inner) if inner and outer is not None else outer


# ----------------------------------------------------------------------------------------------------------
# Kinds of op: a closed list, so that a typing error is reported and not taken for a new kind.
#
#     efficiency: {matmull: 0.5}    no op is a matmull, so products would run at the peak
#
# It includes the kinds made by importers, builders and rewrites. A package registers further ones in the
# entry-point group ``sim.kinds``; a scenario names those of its own ops:
#
#     workload: {kinds: [tokenize], ops: {t: {kind: tokenize, duration: 3us}}}

_KINDS: Final = yaml_beside(__file__, "kinds.yaml")
WITH_FORMULA: Final = frozenset(_KINDS["with_formula"].split())
"""Kinds whose cost follows from the shapes of their tensors (`scenarios.ops.op_costs.COSTS`)."""
KINDS: Final = frozenset(
    (*WITH_FORMULA, *(f"{kind}_grad" for kind in WITH_FORMULA), *_KINDS["others"].split())
)
"""The built-in kinds."""

BY_KIND: Final = tuple(
    name
    for name, field in DEVICE_FIELDS.items()
    if field.type.endswith("by kind") and TYPES[field.type].by_key
)
"""Keys of a device whose value may be a mapping by kind of op."""
LISTS_OF_KINDS: Final = ("kinds", "matrix.kinds")
"""Keys of a device whose value is a list of kinds of op."""


def known_kinds() -> list[str]:
    """Return all known kinds, including those of other packages, sorted."""
    return sorted({*KINDS, *plugins.names("sim.kinds")})


def check_kind(word: str, user_kinds: Collection[str], *path: str | int) -> None:
    """Raise if a word is neither a known kind nor one of the user's own.

    Parameters
    ----------
    word : str
    user_kinds : collection of str
    *path : str and int
        Where it stands.

    Raises
    ------
    UnknownNameError
        With the nearest kind.
    """
    if word in KINDS or word in user_kinds:
        return
    known = [*known_kinds(), *user_kinds]  # ask the packages only now: that takes time
    if word not in known:
        raise UnknownNameError("kind of op", word, dict.fromkeys(known), path=path)


def check_kinds(values: Mapping[str, Any], user_kinds: Collection[str]) -> None:
    """Raise if the description of a device names an unknown kind of op.

    Parameters
    ----------
    values : mapping
        The description as `devices.describe.fields.read_fields` returns it.
    user_kinds : collection of str
        The user's own kinds.

    Raises
    ------
    UnknownNameError
        With the path of the kind, and the nearest one.

    Examples
    --------
    >>> check_kinds({"efficiency": {"matmull": 1}}, user_kinds=())
    Traceback (most recent call last):
        ...
    sim.base.errors.UnknownNameError: efficiency.matmull: unknown kind of op 'matmull'; did you mean ...
    """
    user_kinds = (DEFAULT, *user_kinds)
    for name in BY_KIND:
        for kind in values.get(name) or ():
            check_kind(kind, user_kinds, name, kind)
    for name in LISTS_OF_KINDS:
        for i, kind in enumerate(value_at(values, name) or ()):
            check_kind(kind, user_kinds, *name.split("."), i)
    _check_cost(values.get("cost"), user_kinds, "cost")


def _check_cost(spec: object, user_kinds: Collection[str], *path: str | int) -> None:
    """Raise if a cost model given by kind, alone or in a list, names an unknown kind."""
    if isinstance(spec, list | tuple):
        for i, part in enumerate(spec):
            _check_cost(part, user_kinds, *path, i)
    elif isinstance(spec, Mapping):
        fixed, roofline = spec.get("fixed"), spec.get("roofline")
        by_kind = {"fixed": fixed}
        if isinstance(roofline, Mapping):
            by_kind |= {f"roofline.{name}": roofline.get(name) for name in BY_KIND}
        for name, mapping in by_kind.items():
            for kind in mapping if isinstance(mapping, Mapping) else ():
                check_kind(kind, user_kinds, *path, *name.split("."), kind)
