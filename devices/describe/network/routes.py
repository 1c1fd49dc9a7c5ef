"""How routes are chosen, and routes that are given, from descriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from devices.describe.field_reading import Field, read_fields
from devices.describe.field_types import TYPES
from devices.describe.network.patterns import filled, pairs
from sim.machine.link import Link
from sim.machine.routing import Routing
from sim.words.errors import InputError, UnknownNameError, located

__all__ = ["ROUTE_FIELDS", "make_routing"]

ROUTE_FIELDS: Final[Mapping[str, Field]] = {
    field.name: field
    for field in (
        Field("from", "word", "device, or pattern", example="gpu0"),
        Field("to", "word", "device, or pattern, as in a link", example="gpu2"),
        Field("via", "words", "the devices in between; words in braces are those of from and to"),
    )
}


def make_routing(
    kind: tuple[str, int] | None, routes: object, devices: Sequence[str], links: Sequence[Link]
) -> Routing:
    """Return how a machine chooses routes.

    Parameters
    ----------
    kind : (str, int), optional
        The word and the seed of ``routing``.
    routes : sequence of mapping
        Those that are given, with the keys ``from``, ``to`` and ``via``.
    devices : sequence of str
    links : sequence of Link

    Raises
    ------
    InputError
        A device that there is not, two devices that no link connects, a route that is given twice.

    Examples
    --------
    >>> links = [Link("ab", "a", "b"), Link("bc", "b", "c"), Link("ac", "a", "c")]
    >>> make_routing(None, [{"from": "a", "to": "c", "via": ["b"]}], ["a", "b", "c"], links).given
    {('a', 'c'): ('b',)}
    """
    given: dict[tuple[str, str], tuple[str, ...]] = {}
    connected = {(link.source, link.destination) for link in links}
    known = set(devices)
    with located("routes"):
        if isinstance(routes, (str, Mapping)) or not isinstance(routes, Sequence):
            raise InputError(f"{routes!r} is not a list of routes")
        for i, route in enumerate(routes):
            values = read_fields(route, ROUTE_FIELDS, i)
            with located(i):
                for key in ROUTE_FIELDS:
                    if key not in values:
                        raise InputError(f"a route needs {', '.join(ROUTE_FIELDS)}", path=(key,))
                for a, b, words in pairs(values["from"], values["to"], devices):
                    via = tuple(filled(name, words) for name in values["via"])
                    with located("via"):
                        _check((a, *via, b), known, connected)
                    if (a, b) in given:
                        raise InputError(f"the route from {a} to {b} is given twice")
                    given[a, b] = via
    word, seed = kind or (TYPES["routing"].read("shortest"))
    return Routing(word, seed, given)


def _check(passed: Sequence[str], known: set[str], connected: set[tuple[str, str]]) -> None:
    for name in passed:
        if name not in known:
            raise UnknownNameError("device", name, known)
        if passed.count(name) > 1:
            raise InputError(f"the route passes {name!r} twice")
    for a, b in pairwise(passed):
        if (a, b) not in connected:
            raise InputError(f"no link leads from {a} to {b}")
