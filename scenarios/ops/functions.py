"""Functions: ops that stand for other ops, which are written out when the graph is built.

A function has inputs, ops and results. Three kinds of op name functions in their attributes::

    call    body                                its results are those of the body
    if      then, else                          the first input decides (its producer carries an ``outcome``);
                                                the other inputs are those of both functions
    while   body, cond (optional), trips,       the inputs are the first values of the loop's variables, which
            parallel_iterations                 are inputs and results of the body; cond's result decides

Functional If and While as ONNX has them, and TensorFlow 2. `scenarios.ops.inlining` writes them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sim.words.errors import GraphError, InputError
from sim.words.limits import MOST_BUILT, at_most

__all__ = ["FUNCTIONAL_KINDS", "Function", "Record", "check_size", "is_functional"]

FUNCTIONAL_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "call": ("body",),
    "if": ("then", "else"),
    "while": ("body",),
}
"""Kinds of op that stand for others, and the attributes that name their functions."""

Record = Mapping[str, Any]
"""Arguments of `GraphBuilder.op`."""


class Function(NamedTuple):
    """Ops with inputs and results.

    Attributes
    ----------
    name : str
    inputs : tuple of str
        Names by which its ops read what is given.
    ops : tuple of mapping
        Arguments of `GraphBuilder.op`, each with its ``name``.
    results : tuple of str
        Outputs of its ops, or inputs that are passed through.
    """

    name: str
    inputs: tuple[str, ...]
    ops: tuple[Record, ...]
    results: tuple[str, ...]


def is_functional(record: Record) -> bool:
    """Whether an op stands for others: its kind says so, and its attributes name a function."""
    names = FUNCTIONAL_KINDS.get(record.get("kind", ""))
    return names is not None and any(name in (record.get("attributes") or {}) for name in names)


def check_size(records: Sequence[Record], functions: Mapping[str, Function]) -> None:
    """Refuse what would become too many ops, or is nested too deeply, before any of it is written out."""
    known: dict[str, tuple[int, int]] = {}

    def measure(ops: Sequence[Record], above: tuple[str, ...]) -> tuple[int, int]:
        """Return the number of ops that some ops become, and how deeply they are nested."""
        if len(above) > _DEEPEST:
            raise GraphError(
                f"functions call one another more than {_DEEPEST} levels deep ({above[0]!r} ...)"
            )
        count, depth = len(ops), 0
        for op in filter(is_functional, ops):
            called = {op["attributes"].get(key) for key in ("body", "then", "else", "cond")}
            for name in called & functions.keys() - set(above):  # one that calls itself is refused later
                if name not in known:
                    known[name] = measure(functions[name].ops, (*above, name))
                count, depth = count + known[name][0], max(depth, 1 + known[name][1])
        if depth > _DEEPEST:
            raise GraphError(f"functions call one another more than {_DEEPEST} levels deep")
        return count, depth

    try:
        at_most(MOST_BUILT, measure(records, ())[0], "ops, with those of functions,")
    except GraphError:
        raise
    except InputError as error:
        raise GraphError(str(error)) from None


_DEEPEST: Final = 64
"""Deepest nesting of functions."""
