"""Everything that can go wrong, as one tree.

::

    SimError
    ├── InputError              the user's input is wrong            (exit status 2)
    │   ├── UnitError           a quantity that cannot be read
    │   ├── GraphError          a graph that cannot be built
    │   ├── UnknownNameError    a name nobody registered             (lists the nearest known)
    │   ├── ScenarioError       a scenario file that breaks the schema (file:line:col)
    │   └── MissingExtraError   an optional package is not installed (names the extra)
    ├── RunError                the input is fine, the run cannot go on (exit status 1)
    │   ├── InfeasibleError     refused before time 0: can never run on this machine
    │   ├── StuckError          nothing can happen any more, tasks remain
    │   └── OutOfMemoryError    an allocation failed
    └── InvariantError          `Trace.check()` found a broken invariant (a bug of ours or of a plugin)

A user's mistake never shows a traceback: the command line prints ``str(error)`` and exits with
``error.exit_status``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "LONGEST_NAME",
    "GraphError",
    "InfeasibleError",
    "InputError",
    "InvariantError",
    "MissingExtraError",
    "OutOfMemoryError",
    "RunError",
    "ScenarioError",
    "SimError",
    "StuckError",
    "UnitError",
    "UnknownNameError",
    "nearest",
    "shortened",
]


class SimError(Exception):
    """Base of every error this project raises on purpose."""

    exit_status: int = 1


class InputError(SimError):
    """What the user gave is wrong; the message says what was found and what is accepted."""

    exit_status = 2


class UnitError(InputError):
    """A quantity has no unit, a wrong unit, or is no number."""


class GraphError(InputError):
    """A graph cannot be built: a cycle, an unknown input, a duplicate name, a negative size."""


class UnknownNameError(InputError):
    """A name that nobody registered.

    Parameters
    ----------
    what : str
        What was looked for: ``"policy"``, ``"device preset"``.
    name : str
        The name that was given.
    known : iterable of str
        The names that exist.

    Examples
    --------
    >>> print(UnknownNameError("policy", "in-ordr", ["in-order", "ready-queue"]))
    unknown policy 'in-ordr'; did you mean 'in-order'? Known: in-order, ready-queue
    """

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        close = nearest(name, names)
        hint = f"; did you mean {shortened(close)!r}?" if close else "."
        shown = ", ".join(map(shortened, names[:40])) + (", ..." if len(names) > 40 else "")
        super().__init__(f"unknown {what} {shortened(name)!r}{hint} Known: {shown or '(none)'}")
        self.what, self.name, self.known = what, name, names


class ScenarioError(InputError):
    """A scenario file breaks the schema; the message begins with ``file:line:col:`` where known."""


class MissingExtraError(InputError):
    """An optional dependency is needed and absent.

    Examples
    --------
    >>> print(MissingExtraError("reading ONNX files", "onnx"))
    reading ONNX files needs the extra 'onnx': pip install 'graph-schedule-sim[onnx]'
    """

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(f"{purpose} needs the extra {extra!r}: pip install 'graph-schedule-sim[{extra}]'")
        self.extra = extra


class RunError(SimError):
    """The input is well formed, and still the run cannot start or go on."""


class InfeasibleError(RunError):
    """Refused before time 0: this workload can never run on this machine."""


class StuckError(RunError):
    """Nothing can happen any more and tasks remain; the message says what each waits for."""


class OutOfMemoryError(RunError):
    """An allocation failed; the message tells who asked, what was in use, and what would help."""


class InvariantError(SimError):
    """A trace breaks an invariant of the simulator."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most like `name`, or None when none is near.

    Examples
    --------
    >>> nearest("redy-queue", ["in-order", "ready-queue"])
    'ready-queue'
    """
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


LONGEST_NAME = 80
"""Most characters of a name that a message shows."""


def shortened(name: str) -> str:
    r"""Return a name as a message shows it: on one line, its middle left out where it is long.

    Examples
    --------
    >>> shortened("conv1"), shortened("two\nlines"), len(shortened("x" * 1000))
    ('conv1', 'two lines', 80)
    """
    line = " ".join(name.splitlines())
    if len(line) <= LONGEST_NAME:
        return line
    end = LONGEST_NAME // 4
    return f"{line[: LONGEST_NAME - end - 3]}...{line[-end:]}"
