"""Models of collectives by name, as a machine's description chooses them.

::

    collectives: {model: formula, algorithm: ring}   ──►   Formula(algorithm="ring")

A name is an entry point of the group ``sim.collectives``: a class or function whose parameters are the
options, and which makes a `sim.machine.communicators.CollectiveModel`.
"""

from __future__ import annotations

from typing import Any

from devices.describe.field_types import read_mapping
from sim.machine.communicators import CollectiveModel
from sim.words.errors import InputError, located
from sim.words.options import arguments, parameters, require_call
from sim.words.plugins import NOWHERE, Origin

__all__ = ["DEFAULT_MODEL", "make_collectives"]

DEFAULT_MODEL = "formula"


def make_collectives(spec: object, origin: Origin = NOWHERE) -> CollectiveModel:
    """Return the model that a description asks for.

    Parameters
    ----------
    spec : mapping
        ``model``, by default ``formula``, and its options.
    origin : Origin
        Where relative paths in it begin, and what code it may name.

    Raises
    ------
    InputError
        An unknown model or option, or a value that does not fit.

    Examples
    --------
    >>> make_collectives({"algorithm": "ring", "latency": "5us"})
    Formula(algorithm='ring', group=None, pieces=None, latency_ns=5000, bandwidth=None)
    """
    options: dict[str, Any] = dict(read_mapping(spec))
    with located("model"):
        name = options.pop("model", DEFAULT_MODEL)
        if not isinstance(name, str):
            raise InputError(f"{name!r} is no name of a model")
        make = origin.lookup("sim.collectives", name)
        taken = parameters(make)
    if "origin" in taken:  # for files that it names
        del taken["origin"]
        more = {"origin": origin}
    else:
        more = {}
    made: CollectiveModel = make(**arguments(f"the model {name!r} of collectives", taken, options), **more)
    require_call(f"what the model {name!r} of collectives makes", made, "call", "machine", method="time_ns")
    return made
