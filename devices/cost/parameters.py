"""Parameters of a cost model: a value, a unit, a meaning, and the range in which it still has that meaning.

A model's parameters are a frozen dataclass whose fields are made by :func:`parameter`. What is written down
there serves the fit (start and range) and the reader (meanings). A name says its unit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sim.base.errors import InputError, UnknownNameError

P = TypeVar("P")
FloatArray = npt.NDArray[np.float64]

_UNITS = {"bytes_per_s": "B/s", "flop_per_s": "flop/s", "_flops": "flop", "_bytes": "B", "_ns": "ns"}
"""How names end, and the unit that they say."""


def parameter(start: float, low: float, high: float, meaning: str) -> Any:
    """Declare a parameter as a dataclass field.

    Parameters
    ----------
    start : float
        Where a fit begins; a sensible guess, not a fitted value.
    low, high : float
        Outside this range the parameter no longer is what `meaning` says (a bandwidth above the data
        sheet's).
    meaning : str
        One sentence.
    """
    return dataclasses.field(metadata={"start": start, "low": low, "high": high, "meaning": meaning})


def unit_of(name: str) -> str:
    """Return the unit that a parameter's name ends in: ``"ns"``, ``"B/s"``, ``"1"`` for a plain number.

    Examples
    --------
    >>> unit_of("ll_bytes_per_s"), unit_of("tail")
    ('B/s', '1')
    """
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "1")


def ranges(kind: type[Any]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return starts, lows and highs of a parameter class, in field order."""
    about = [f.metadata for f in dataclasses.fields(kind)]
    starts, lows, highs = (np.array([a[key] for a in about], dtype=float) for key in ("start", "low", "high"))
    return starts, lows, highs


def from_vector(kind: type[P], values: FloatArray) -> P:
    """Return the parameters with these values, in field order."""
    return kind(*values.tolist())


def to_mapping(parameters: Any) -> dict[str, dict[str, Any]]:
    """Return name -> value, unit and meaning, as it is written to a file of fitted values."""
    return {
        f.name: {
            "value": float(f"{getattr(parameters, f.name):.6g}"),
            "unit": unit_of(f.name),
            "meaning": f.metadata["meaning"],
        }
        for f in dataclasses.fields(parameters)
    }


def from_mapping(kind: type[P], given: Mapping[str, Mapping[str, Any]]) -> P:
    """Read what :func:`to_mapping` gave.

    Raises
    ------
    UnknownNameError
        A parameter that the model does not have.
    InputError
        A parameter is missing, or is no number.
    """
    names = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in names:
            raise UnknownNameError(f"parameter of {kind.__name__}", name, names)
    if missing := [name for name in names if name not in given]:
        raise InputError(f"{kind.__name__} needs {', '.join(missing)}")
    try:
        return kind(**{name: float(given[name]["value"]) for name in names})
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{kind.__name__}: each parameter is a mapping with a number as value") from error


def with_values(parameters: P, given: Mapping[str, object], what: str) -> P:
    """Return the parameters with some values replaced, in the unit that each has in its file.

    A value must lie where the parameter still has its meaning. Zero, which switches an effect off, is
    accepted as well of whatever is a cost: a time, or a share or size that may be as small as one likes.

    Parameters
    ----------
    parameters : dataclass
        The values that stay.
    given : mapping of str to number
        The new ones.
    what : str
        The beginning of messages.

    Raises
    ------
    UnknownNameError
        A parameter that the model does not have.
    InputError
        No number, or one outside the parameter's range.

    Examples
    --------
    >>> from devices.cost.fitted import load_fit
    >>> with_values(load_fit("h200").gemm, {"launch_ns": 0}, "gemm").launch_ns
    0.0
    >>> with_values(load_fit("h200").gemm, {"l2_bytes": 0}, "gemm")
    Traceback (most recent call last):
        ...
    sim.base.errors.InputError: gemm.l2_bytes: 0 B is outside 5e+06 to 1e+08 B, where it still means ...
    """
    fields = {f.name: f.metadata for f in dataclasses.fields(parameters)}  # type: ignore[arg-type]
    for name, value in given.items():
        if name not in fields:
            raise UnknownNameError(f"parameter {what}", name, list(fields))
        about, unit = fields[name], unit_of(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InputError(f"{value!r} is not a number; accepted: one in {unit}", path=(what, name))
        off = value == 0 and (unit == "ns" or name in _MAY_VANISH)
        if not (off or about["low"] <= value <= about["high"]):
            raise InputError(
                f"{value:g} {unit} is outside {about['low']:g} to {about['high']:g} {unit}, "
                f"where it still means what it says: {about['meaning']}",
                path=(what, name),
            )
    return dataclasses.replace(parameters, **{name: float(value) for name, value in given.items()})  # type: ignore[type-var, arg-type]


_MAY_VANISH = ("bandwidth_half_bytes",)
"""Sizes of zero that leave no division by zero behind: the effect is then gone."""
