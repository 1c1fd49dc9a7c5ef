"""Where in a scenario a message about an op belongs.

What builds and runs graphs knows names, not files. Its messages name the op they are about, and here the
name leads back to where that op is written::

    "loop condition 'w/cond' has trips 'x'"  ──►  w  ──►  workload.ops.w.attributes.trips
    "graph 'g' has a cycle: b -> d -> b"     ──►  b  ──►  workload.ops.b
    "op 'w/body/s' ..."                      ──►  w, whose function has an op s
"""

from __future__ import annotations

import re
from typing import Final

from scenarios.file.document import Document, Loc

__all__ = ["op_place"]

_NAMED: Final = re.compile(
    r"\b(?:op|loop|loop condition|condition of|switch|merge|enter|exit|edge) '([^']*)'|has a cycle: (.+?) -> "
)


def op_place(message: str, document: Document) -> Loc:
    """Return the path of the op that `message` names first, or of its attribute; else of the workload.

    Examples
    --------
    >>> from pathlib import Path
    >>> from scenarios.file.yaml_read import read_yaml_text
    >>> root = read_yaml_text("workload: {ops: {p: {attributes: {outcome: 7}}, f: {}}}", "s.yaml")
    >>> document = Document(root, Path("s.yaml"))
    >>> op_place("op 'p' has outcome 7; give true or false", document)
    ('workload', 'ops', 'p', 'attributes', 'outcome')
    >>> op_place("graph 'g' has a cycle: f/0 -> p -> f/0", document)
    ('workload', 'ops', 'f')
    """
    match = _NAMED.search(message)
    ops = document.root.child("workload")
    ops = ops and ops.child("ops")
    if match is None or ops is None:
        return ("workload",)
    name = match[1] or match[2]
    while not (op := ops.child(name)):  # parts of a split op, and ops of its functions: NAME/...
        name, slash, _ = name.rpartition("/")
        if not slash:
            return ("workload", "ops")
    loc: Loc = ("workload", "ops", name)
    attributes = op.child("attributes")
    given = attributes.value if attributes is not None and isinstance(attributes.value, dict) else {}
    for key, node in given.items():
        if f" has {key} " in message or (
            isinstance(node.value, str) and f" function {node.value!r}" in message
        ):
            return (*loc, "attributes", key)
    return loc
