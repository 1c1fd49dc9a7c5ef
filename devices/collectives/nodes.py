"""Which node of a cluster a device is on: what its name begins with.

::

    node3/gpu5    of `nodes: 16`: on node3
    rank3/gpu0    a rank of a recorded job, of which nobody wrote down where it was: on none
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["node_of"]

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
