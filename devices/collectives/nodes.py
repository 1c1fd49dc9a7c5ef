"""Which node of a cluster a device is on: what its name begins with.

::

    node3/gpu5    of `nodes: 16`: on node3
    rank3/gpu0    a rank of a recorded job, of which nobody wrote down where it was: on none
"""

from __future__ import annotations

import re
from typing import Final

from sim.machine.communicators import Call
from sim.machine.machine import Machine

__all__ = ["by_node", "node_of"]

_NODE: Final = re.compile(r"node\d+(?=/)")


def node_of(name: str) -> str:
    """Return the node of a device by its name; empty: it names none.

    Examples
    --------
    >>> node_of("node3/gpu5"), node_of("rank3/gpu0"), node_of("gpu0")
    ('node3', '', '')
    """
    found = _NODE.match(name)
    return "" if found is None else found[0]


def by_node(call: Call, machine: Machine) -> list[list[int]]:
    """Return the positions of the ranks on each node, or whatever the names of its devices begin with."""
    nodes: dict[str, list[int]] = {}
    for position, rank in enumerate(call.ranks):
        nodes.setdefault(machine.devices[rank].name.rpartition("/")[0], []).append(position)
    return list(nodes.values())
