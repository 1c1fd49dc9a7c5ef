"""Links from descriptions: one entry of a file may stand for many links.

::

    {from: gpu*, to: switch, bandwidth: 450GB/s}      gpu0->switch, switch->gpu0, gpu1->switch, ...

A pattern is that of a shell (`fnmatch`). Two patterns connect every pair, and ``duplex`` (the default) adds
the other direction as a link of its own, as both directions of real links work at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Any

from devices.describe.fields import LINK_FIELDS, merge, read_fields
from sim.machine.link import Link
from sim.words.errors import InputError, UnknownNameError, located

__all__ = ["make_links", "matching"]


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the names that fit a shell pattern, in the order given.

    Raises
    ------
    UnknownNameError
        None does.

    Examples
    --------
    >>> matching("gpu*", ["cpu0", "gpu0", "gpu1"])
    ['gpu0', 'gpu1']
    """
    found = [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        raise UnknownNameError("device", pattern, names)
    return found


def make_links(
    base: object, over: object, devices: Sequence[str], *, ideal: bool = False
) -> tuple[Link, ...]:
    """Build links from two lists of descriptions.

    Parameters
    ----------
    base : sequence of mapping
        Links of a preset.
    over : sequence of mapping
        Further ones. One that has the ``name`` of a link in `base` and no ends of its own changes that one.
    devices : sequence of str
        The devices that patterns can mean.
    ideal : bool
        Drop latencies and losses of `base`.

    Raises
    ------
    InputError
        An end that is no device, a link from a device to itself, two links of one name, a wrong quantity.

    Examples
    --------
    >>> [link.name for link in make_links([], [{"from": "gpu*", "to": "cpu0"}], ["cpu0", "gpu0", "gpu1"])]
    ['gpu0->cpu0', 'cpu0->gpu0', 'gpu1->cpu0', 'cpu0->gpu1']
    """
    with located("links"):
        specs = [merge(spec, {}, LINK_FIELDS, ideal=ideal) for spec in _list(base)]
        n_base = len(specs)
        named = {spec["name"]: i for i, spec in enumerate(specs) if "name" in spec}
        said: dict[int, int] = {}  # index in specs → in `over`
        for i, spec in enumerate(_list(over)):
            place = named.get(spec.get("name", "")) if "from" not in spec and "to" not in spec else None
            said[len(specs) if place is None else place] = i
            if place is None:
                specs.append(dict(spec))
            else:
                specs[place] = merge(specs[place], spec, LINK_FIELDS)
        links: dict[str, Link] = {}
        for i, spec in enumerate(specs):
            # A preset's link may mean devices that a smaller count has left out; a scenario's means some.
            if i < n_base and not _has_ends(spec, devices):
                continue
            with located(*([said[i]] if i in said else [])):
                for link in _expand(spec, devices):
                    if link.name in links:
                        raise InputError(f"two links are called {link.name!r}; give one of them another name")
                    links[link.name] = link
        return tuple(links.values())


def _has_ends(spec: Mapping[str, Any], devices: Sequence[str]) -> bool:
    return all(any(fnmatchcase(name, str(spec.get(end))) for name in devices) for end in ("from", "to"))


def _list(specs: object) -> list[Mapping[str, Any]]:
    if isinstance(specs, (str, Mapping)) or not isinstance(specs, Sequence):
        raise InputError(f"{specs!r} is not a list of links")
    for i, spec in enumerate(specs):
        if not isinstance(spec, Mapping):
            message = f"{spec!r} is not a description of a link; accepted: a mapping of keys"
            raise InputError(message, path=(i,))
    return list(specs)


def _expand(spec: Mapping[str, Any], devices: Sequence[str]) -> list[Link]:
    values = read_fields(spec, LINK_FIELDS)
    ends = []
    for end in ("from", "to"):
        if end not in values:
            raise InputError("a link needs two ends, from and to", path=(end,))
        with located(end):
            ends.append(matching(values[end], devices))
    froms, tos = ends
    pairs = [(a, b) for a in froms for b in tos if a != b]
    if not pairs:
        raise InputError(f"from and to are both {froms[0]!r}, and nothing has to be carried there")
    if values.get("duplex", True):
        pairs = [pair for a, b in pairs for pair in ((a, b), (b, a))]
    pairs = list(dict.fromkeys(pairs))
    name = values.get("name")
    bandwidth = values.get("bandwidth")
    if bandwidth is not None:
        bandwidth = max(1, int(bandwidth * values.get("efficiency", Fraction(1))))
    return [
        Link(
            f"{a}->{b}" if name is None else name if len(pairs) == 1 else f"{name} {a}->{b}",
            a,
            b,
            values.get("latency", 0),
            bandwidth,
            values.get("sharing", "serial"),
            values.get("on_request", False),
        )
        for a, b in pairs
    ]
