"""Where in a scenario an error about an op belongs.

What builds and runs graphs knows names, not files. Its errors say which op they are about
(`SimError.about`), and here the name leads back to where that op is written::

    about("w/cond", "trips")  ──►  w  ──►  workload.ops.w.attributes.trips
    about("b")                ──►  b  ──►  workload.ops.b
    about("w/body/s")         ──►  w, whose function has an op s
"""

from __future__ import annotations

from scenarios.file.document import Document, Loc
from sim.words.errors import SimError

__all__ = ["op_place"]


def op_place(error: SimError, document: Document) -> Loc:
    """Return the path of the op that `error` is about, or of its attribute; else of the workload.

    Examples
    --------
    >>> from pathlib import Path
    >>> from scenarios.file.yaml_read import read_yaml_text
    >>> root = read_yaml_text("workload: {ops: {p: {attributes: {outcome: 7}}, f: {}}}", "s.yaml")
    >>> document = Document(root, Path("s.yaml"))
    >>> op_place(SimError("op 'p' has outcome 7").about("p", "outcome"), document)
    ('workload', 'ops', 'p', 'attributes', 'outcome')
    >>> op_place(SimError("op 'p' fails, and the error does not say that it is about it"), document)
    ('workload',)
    >>> op_place(SimError("graph 'g' has a cycle: f/0 -> p -> f/0").about("f/0"), document)
    ('workload', 'ops', 'f')
    """
    ops = document.root.child("workload")
    ops = ops and ops.child("ops")
    if error.op is None or ops is None:
        return ("workload",)
    name = error.op
    while not (op := ops.child(name)):  # parts of a split op, and ops of its functions: NAME/...
        name, slash, _ = name.rpartition("/")
        if not slash:
            return ("workload", "ops")
    loc: Loc = ("workload", "ops", name)
    attributes = op.child("attributes")
    if attributes is not None and error.attribute is not None and attributes.child(error.attribute):
        return (*loc, "attributes", error.attribute)
    return loc
