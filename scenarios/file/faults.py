"""Turns pydantic's errors into this project's messages, with their places in the file.

::

    {'type': 'extra_forbidden', 'loc': ('machine', 'devices', 'gpu0', 'stream')}
        ──►  s.yaml:4:14: machine.devices.gpu0.stream: no such key; did you mean 'streams'?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, get_args, get_origin

from pydantic import BaseModel, Discriminator, Tag, ValidationError

from scenarios.file.document import Document, Loc, dotted_path
from scenarios.file.yaml_read import Place
from scenarios.ops.attributes import ATTRIBUTES
from sim.base.arrays import group_pairs
from sim.base.errors import InputError, ScenarioError, hint, nearest
from sim.base.options import misfit_text

SHOWN: Final = 10
"""Number of faults shown; a file with more usually has a single cause."""

_SHAPES: Final = ("string_type", "list_type", "dict_type", "model_type", "model_attributes_type")
_PLAIN: Final = ("bool_type", "int_type", "float_type", "literal_error")
"""Errors of a value of the wrong kind; those of `_PLAIN` only if the value is a mapping or a list."""


def scenario_error(error: ValidationError, model: type[BaseModel], document: Document) -> ScenarioError:
    """Return one error for all faults of a file, with a line for each, in the order of the file.

    Parameters
    ----------
    error : ValidationError
    model : type
        Validated model, which has the known keys.
    document : Document
        Document of the file.
    """
    lines: dict[str, Place] = {}
    for loc, shown_loc, message, key in _describe(error, model, document.root.plain()):
        place = document.place(loc, key=key)
        path = dotted_path(shown_loc)
        lines[str(place.error(f"{path}: {message}" if path else message))] = place
    return in_order(lines)


def input_error(error: ValidationError, model: type[BaseModel], values: Mapping[str, Any]) -> InputError:
    """Return one error for all faults in values that Python code gives to a model, with a line for each."""
    errors = [InputError(text, path=shown_loc) for _, shown_loc, text, _ in _describe(error, model, values)]
    return errors[0] if len(errors) == 1 else InputError("\n".join(map(str, errors)))


def _describe(
    error: ValidationError, model: type[BaseModel], document: Any
) -> Iterator[tuple[Loc, Loc, str, bool]]:
    """Yield for each fault its path in the input, the path to show, the message, and whether it is a key."""
    faults = error.errors(include_url=False)
    for fault in faults:
        if fault["type"] == "scenario":
            fault["loc"] = (*fault["loc"], *fault["ctx"]["path"])
    unknown_keys = [fault["loc"] for fault in faults if fault["type"] == "extra_forbidden"]
    likely = {near for loc in unknown_keys for near in _likely_locs(loc, model)}
    locs = [_existing(fault["loc"], document) for fault in faults]
    shapes = [
        fault["type"] in _SHAPES
        or (isinstance(fault["input"], dict | list) and (fault["type"] in _PLAIN or _is_of_reader(fault)))
        for fault in faults
    ]
    fitting = {loc for shape, loc in zip(shapes, locs, strict=True) if not shape}
    fitting.update(loc[:k] for loc in locs for k in range(len(loc)))
    kinds = [fault["type"] in (*_SHAPES, *_PLAIN) for fault in faults]
    alike = group_pairs(zip(zip(locs, kinds, shapes, strict=True), faults, strict=True))
    for fault, loc, kind, shape in zip(faults, locs, kinds, shapes, strict=True):
        if shape and loc in fitting:
            continue  # another member of the union has this shape, and the fault is in there
        group = alike[loc, kind, shape] if kind else [fault]
        if fault is not group[0]:
            continue  # a member of the union that is reported with the first
        missing = fault["type"] == "missing"
        unknown = fault["type"] == "extra_forbidden"
        if missing and fault["loc"] in likely:  # misspelt or misplaced: another line says so
            continue
        message = _unknown_key(fault["loc"], model) if unknown else _message(*group)
        yield loc, (*loc, fault["loc"][-1]) if missing else loc, message, unknown


def in_order(lines: Mapping[str, Place]) -> ScenarioError:
    """Return one error from several lines with places, in the order of the file."""
    ordered = sorted(lines, key=lambda line: (lines[line].source, lines[line].line, lines[line].column))
    more = f"\n(and {len(ordered) - SHOWN} more)" if len(ordered) > SHOWN else ""
    error = ScenarioError("\n".join(ordered[:SHOWN]) + more)
    error.placed = [(lines[line], line.removeprefix(f"{lines[line]}: ")) for line in ordered]
    return error


def _existing(loc: Loc, value: Any) -> Loc:
    """Return the part of pydantic's path that is in the input: pydantic adds names of union members."""
    existing: list[str | int] = []
    for part in loc:
        key = str(part) if isinstance(value, Mapping) else part
        keys = value if isinstance(value, Mapping) else range(len(value)) if isinstance(value, list) else ()
        if key in keys:
            value = value[key]
            existing.append(part)
    return tuple(existing)


_READER_PREFIXES: Final = ("function-before", "function-plain")


def _is_of_reader(fault: Any) -> bool:
    """Whether a member of a union refuses a value as a whole before it is read: no quantity is a list."""
    loc = fault["loc"]  # empty where a whole record is refused
    return fault["type"] == "scenario" and loc != () and str(loc[-1]).startswith(_READER_PREFIXES)


def _message(fault: Any, *others: Any) -> str:
    kind = fault["type"]
    if kind == "scenario":
        return str(fault["ctx"]["message"])
    if kind == "missing":
        return "is missing"
    if kind == "too_short" and not fault["input"]:
        return "is empty"
    quotes = "; put it in quotes if it is meant" if kind == "string_type" and not others else ""
    return misfit_text(fault, *others) + quotes


def _unknown_key(loc: Loc, model: type[BaseModel]) -> str:
    homes = _homes(loc, model)
    if homes:
        return f"no such key; it belongs under {' or '.join(homes)}"
    return f"no such key{hint(str(loc[-1]), _keys_at(model, loc[:-1]))}"


def _likely_locs(loc: Loc, model: type[BaseModel]) -> list[Loc]:
    """Return the paths that an unknown key may stand for: where it belongs, or else the nearest key."""
    near = nearest(str(loc[-1]), sorted(_keys_at(model, loc[:-1])))
    names = _homes(loc, model) or ([near] if near else [])
    return [(*loc[:-1], name) for name in names]


def _homes(loc: Loc, model: type[BaseModel]) -> list[str]:
    """Return the sections beside an unknown key that accept it; attributes accept any of `ATTRIBUTES`."""
    beside, name = sorted(_keys_at(model, loc[:-1])), str(loc[-1])
    homes = [block for block in beside if name in _keys_at(model, (*loc[:-1], block))]
    return homes or [block for block in beside if block == "attributes" and name in ATTRIBUTES]


def _keys_at(model: type[BaseModel], loc: Loc) -> set[str]:
    """Return the keys that the mapping at `loc` accepts."""
    fields = [model_type.model_fields.items() for model_type in _models_at(model, loc)]
    return {field.alias or name for items in fields for name, field in items}


def _models_at(annotation: Any, loc: Loc) -> Iterator[type[BaseModel]]:
    """Yield the models that may validate the value at `loc`, following unions, lists and dicts."""
    annotation = getattr(annotation, "__value__", annotation)  # a named type
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if not loc:
            yield annotation
            return
        for name, field in annotation.model_fields.items():
            if (field.alias or name) == loc[0]:
                yield from _models_at(field.annotation, loc[1:])
        return
    if get_origin(annotation) in (dict, list):
        if loc:  # an item
            yield from _models_at(get_args(annotation)[-1], loc[1:])
        return
    if get_origin(annotation) is Annotated and isinstance(get_args(annotation)[-1], Discriminator):
        yield from _models_at(get_args(annotation)[0], loc)
        return
    # A union or an annotated type; pydantic names the member of a union in the path.
    tag = str(loc[0]) if loc and str(loc[0]).startswith("<") else None
    named = tag is not None or (bool(loc) and str(loc[0]).startswith(("list[", "function-")))
    for member in get_args(annotation):
        if tag is None or any(isinstance(part, Tag) and part.tag == tag for part in get_args(member)):
            yield from _models_at(member, loc[1:] if named else loc)
