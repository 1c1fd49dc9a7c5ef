"""All errors of the project, as one tree.

::

    SimError
    ├── InputError              the user's input is wrong            (exit status 2)
    │   ├── UnitError           a quantity that cannot be read
    │   ├── GraphError          a graph that cannot be built
    │   ├── MisfitError         sizes that are each valid but do not fit together
    │   ├── UnknownNameError    a name that is not registered        (lists the nearest known)
    │   ├── UnknownOptionError  an option that its owner does not have
    ├── RunError                the input is fine, the run cannot go on (exit status 1)
    │   ├── InfeasibleError     refused before time 0: can never run on this machine
    │   ├── StuckError          nothing can happen any more, tasks remain
    │   └── OutOfMemoryError    an allocation failed
    └── InvariantError          `Trace.check()` found a broken invariant (a bug of ours or of a plugin)

A user's mistake never shows a traceback: the command line prints ``str(error)`` and exits with
``error.exit_status``.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Self


class SimError(Exception):
    """Base of every error this project raises on purpose.

    Attributes
    ----------
    op, attribute, entry : str or None
        The op that the error is about, its attribute, and the name in a list there. The caller that knows the
        file finds their place.
    placed : sequence of (place, str)
        Places in a file with what is wrong there, if the message has several parts.
    """

    exit_status: int = 1
    op: str | None = None
    attribute: str | None = None
    entry: str | None = None
    placed: Sequence[tuple[Any, str]] = ()

    def about(self, op: str, attribute: str | None = None, entry: str | None = None) -> Self:
        """Record which op the error is about, and what of it; return the error.

        Examples
        --------
        >>> error = GraphError("loop condition 'w' has trips 'x'").about("w", "trips")
        >>> error.op, error.attribute
        ('w', 'trips')
        """
        self.op, self.attribute, self.entry = op, attribute, entry
        return self


class InputError(SimError):
    """The user's input is wrong; the message says what was found and what is accepted.

    Parameters
    ----------
    message : str
    path : iterable of str and int
        Where in the input the mistake is: keys of mappings and indices of lists, from the outside in.
        The raiser gives the part that it knows, each caller prepends its own (`error_path`), and the caller
        that knows the file turns the whole into line and column. `str` begins with it.

    Examples
    --------
    >>> error = InputError("is negative", path=("gap",)).under("links", 0)
    >>> error.path, error.message, str(error)
    (('links', 0, 'gap'), 'is negative', 'links[0].gap: is negative')
    """

    exit_status = 2

    def __init__(self, message: str = "", *, path: Iterable[str | int] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.path = tuple(path)

    def under(self, *parts: str | int) -> Self:
        """Return the same error with a longer path, as seen from further outside."""
        outer = copy.copy(self)
        outer.path = (*parts, *self.path)
        return outer

    def __str__(self) -> str:
        """Return path and message."""
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)
        return f"{where.removeprefix('.')}: {self.message}" if where else self.message

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling, so that processes can exchange errors whatever their constructors take."""
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(kind: type[InputError], args: tuple[object, ...], state: dict[str, object]) -> InputError:
    error = kind.__new__(kind, *args)
    error.args, error.__dict__ = args, state
    return error


@contextmanager
def error_path(*parts: str | int) -> Iterator[None]:
    """Prepend `parts` to the path of an `InputError` raised inside.

    Examples
    --------
    >>> with error_path("gpu0"), error_path("gap"):
    ...     raise InputError("is negative")
    Traceback (most recent call last):
        ...
    sim.base.errors.InputError: gpu0.gap: is negative
    """
    try:
        yield
    except ScenarioError:  # it already has a place
        raise
    except InputError as error:
        raise error.under(*parts) from None


@contextmanager
def in_file(path: object) -> Iterator[None]:
    """Prefix the message of an error with the file (or model, or option) that it is about.

    Examples
    --------
    >>> with in_file("model.onnx"):
    ...     raise InputError("has no node")
    Traceback (most recent call last):
        ...
    sim.base.errors.InputError: model.onnx: has no node
    """
    try:
        yield
    except InputError as error:
        kind = GraphError if isinstance(error, GraphError) else InputError
        raise kind(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None


class UnitError(InputError):
    """A quantity has no unit, a wrong unit, or is not a number."""


class GraphError(InputError):
    """A graph cannot be built: a cycle, an unknown input, a duplicate name, a negative size."""


class UnknownNameError(InputError):
    """A name that is not registered.

    Parameters
    ----------
    what : str
        What was looked for: ``"policy"``, ``"device preset"``.
    name : str, or anything that is given for one
        The name that was given.
    known : iterable of str
        The names that exist.
    path : iterable of str and int
        See `InputError`.

    Examples
    --------
    >>> print(UnknownNameError("policy", "in-ordr", ["in-order", "ready-queue"]))
    unknown policy 'in-ordr'; did you mean 'in-order'? Known: in-order, ready-queue
    """

    def __init__(self, what: str, name: Any, known: Iterable[str], *, path: Iterable[str | int] = ()) -> None:
        name, names = str(name), sorted(known)
        close = None if (counted := _number_range(name, names)) else nearest(name, names)
        hint = f"; did you mean {shorten(close)!r}?" if close else f"{_present_form(name, names)}."
        listed = counted or ", ".join(map(shorten, names[:40])) + (", ..." if len(names) > 40 else "")
        super().__init__(f"unknown {what} {shorten(name)!r}{hint} Known: {listed or '(none)'}", path=path)
        self.what, self.name, self.known = what, name, names


class UnknownOptionError(InputError):
    """An option that its owner does not take; its path leads to it.

    Examples
    --------
    >>> print(UnknownOptionError("gpipe", "ordr", ["order"]))
    ordr: gpipe has no option 'ordr'; did you mean 'order'?
    """

    def __init__(self, what: str, option: str, known: Collection[str]) -> None:
        near = hint(option, known) or "; it has none"
        super().__init__(f"{what} has no option {option!r}{near}", path=(option,))
        self.what, self.option, self.known = what, option, [*known]


class ScenarioError(InputError):
    """A scenario file breaks the schema; the message begins with ``file:line:col:`` where known."""


class MisfitError(InputError):
    """Sizes that are each valid do not fit together: 3 ranks and 8 heads.

    A sweep leaves such a combination out and counts it.

    Parameters
    ----------
    message : str
        The message, with the sizes.
    reason : str
        The message without sizes, shared by other combinations that do not fit for the same reason.

    Examples
    --------
    >>> MisfitError("3 ranks cannot share 8 heads", reason="tp divides no heads").reason
    'tp divides no heads'
    """

    def __init__(self, message: str = "", *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class MissingExtraError(InputError):
    """An optional dependency is needed and absent, or cannot be imported, as `cause` says.

    Examples
    --------
    >>> print(MissingExtraError("reading ONNX files", "onnx"))
    reading ONNX files needs the extra 'onnx': pip install 'graph-schedule-sim[onnx]'
    """

    def __init__(self, purpose: str, extra: str, cause: str = "") -> None:
        fails = f" (it is there, and its import fails: {cause})" if cause else ""
        install = f"pip install 'graph-schedule-sim[{extra}]'"
        super().__init__(f"{purpose} needs the extra {extra!r}: {install}{fails}")
        self.extra = extra


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Raise an error that names the extra if an import inside the block fails.

    Parameters
    ----------
    name : str
        The extra.
    purpose : str
        What needs it.

    Raises
    ------
    MissingExtraError
        An import fails.

    Examples
    --------
    >>> with extra("onnx", "reading ONNX files"):
    ...     raise ImportError("no libprotobuf.so")
    Traceback (most recent call last):
    sim.base.errors.MissingExtraError: reading ONNX files needs the extra 'onnx': ... no libprotobuf.so)
    """
    try:
        yield
    except ModuleNotFoundError:
        raise MissingExtraError(purpose, name) from None
    except ImportError as error:
        raise MissingExtraError(purpose, name, str(error)) from None


class RunError(SimError):
    """The input is well formed, but the run cannot start or go on."""


class InfeasibleError(RunError):
    """Refused before time 0: this workload can never run on this machine."""


class StuckError(RunError):
    """Nothing can happen any more and tasks remain; the message says what each waits for."""


class OutOfMemoryError(RunError):
    """An allocation failed; the message says what requested it, what was in use, and what would help."""


class InvariantError(SimError):
    """A trace breaks an invariant of the simulator."""


@cache
def renamed_names() -> Mapping[str, str]:
    """Return names of older versions → their present names, as listed in ``renamed.json``.

    A present name is a key where known, with or without a value, or a path, or ``gone: ...`` followed by what
    to do instead.
    """
    import json

    names: dict[str, str] = json.loads(Path(__file__).with_name("renamed.json").read_text(encoding="utf-8"))
    return names


def _present_form(name: str, known: Collection[str]) -> str:
    """Return the present form of an old name, to end a message; empty if it is not old, or not here."""
    new = renamed_names().get(name, "")
    if new.startswith("gone: "):
        return f"; {name} is {new}"
    return f"; {name} is now {new}" if new and ("." in new or new.partition(":")[0] in known) else ""


def nearest(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """Return the known name most like `name`, or None if none has at least the `likeness` (0 to 1).

    Examples
    --------
    >>> nearest("redy-queue", ["in-order", "ready-queue"]), nearest("optimiser", ["order", "optimizer"])
    ('ready-queue', 'optimizer')
    >>> nearest("H100", ["mi100", "h100-sxm"])
    'h100-sxm'
    """
    names = list(known)
    if (new := renamed_names().get(name, "").partition(":")[0]) in names and new:
        return new
    prefixed = _names_beginning(name, names)  # h100-sxm, not mi100, for H100
    matches = difflib.get_close_matches(name, prefixed or names, n=1, cutoff=0.0 if prefixed else likeness)
    return matches[0] if matches else None


def _names_beginning(name: str, names: Iterable[str]) -> list[str]:
    """Return the names that begin with a word, or equal it, ignoring case."""
    low = name.lower()
    return [candidate for candidate in names if low and (candidate.lower() + "-").startswith(f"{low}-")]


def hint(name: str, known: Iterable[str], *, shown: int = 20) -> str:
    """Return the end of a message about an unknown name: the nearest known one, else all of them.

    If only the number in the name is wrong, the nearest are those with other numbers.

    Examples
    --------
    >>> hint("windw", ["window", "order"]), hint("x", ["window", "order"]), hint("x", [])
    ("; did you mean 'window'?", '; known: order, window', '')
    >>> hint("dma_engines", ["copy_engines"]), hint("allocator", ["window"])
    ('; dma_engines is now copy_engines', '; allocator is now memory.allocator')
    >>> hint("vllm", ["orca", "vllm-0.19", "vllm-v0"])
    "; did you mean 'vllm-0.19' or 'vllm-v0'?"
    >>> hint("gpu8", ["cpu0", "gpu1", "gpu0"]), hint("node4/gpu0", ["node0/gpu0", "node1/gpu0"])
    ('; known: gpu0 to gpu1', '; known: node0/gpu0 to node1/gpu0')
    """
    names = sorted(set(known))
    if present := _present_form(name, names):
        return present
    if counted := _number_range(name, names):
        return f"; known: {counted}"
    prefixed = _names_beginning(name, names)
    close = prefixed if 1 < len(prefixed) < 5 else list(filter(None, [nearest(name, names)]))
    if close:
        return f"; did you mean {' or '.join(repr(shorten(candidate)) for candidate in close)}?"
    if not names:
        return ""
    return f"; known: {', '.join(map(shorten, names[:shown]))}" + (", ..." if len(names) > shown else "")


def _number_range(name: str, known: Iterable[str]) -> str:
    """Return 'gpu0 to gpu7' if these are the known names that differ from `name` only in a number."""
    for number in re.finditer(r"\d+", name):
        before, after = re.escape(name[: number.start()]), re.escape(name[number.end() :])
        others = (re.fullmatch(rf"{before}(\d+){after}", candidate) for candidate in known)
        counted = sorted((int(other[1]), other[0]) for other in others if other)
        if len(counted) > 1 and counted[-1][0] - counted[0][0] == len(counted) - 1:
            return f"{shorten(counted[0][1])} to {shorten(counted[-1][1])}"
    return ""


LONGEST_NAME = 80
"""Maximum length of a name in a message."""


def shorten(name: str) -> str:
    r"""Return a name for a message: on one line, shortened in the middle if it is long.

    Examples
    --------
    >>> shorten("conv1"), shorten("two\nlines"), len(shorten("x" * 1000))
    ('conv1', 'two lines', 80)
    """
    line = " ".join(name.splitlines())
    if len(line) <= LONGEST_NAME:
        return line
    end = LONGEST_NAME // 4
    return f"{line[: LONGEST_NAME - end - 3]}...{line[-end:]}"


def clip_repr(value: object, limit: int = 60) -> str:
    """Return a `repr` short enough for a message."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def list_names(names: Sequence[str], limit: int = 1) -> str:
    """Return the first few names, and how many more there are.

    Examples
    --------
    >>> list_names(["gpu0", "gpu1", "gpu2"]), list_names(["gpu0", "gpu1", "gpu2"], 2), list_names(["gpu0"])
    ('gpu0 and 2 more', 'gpu0, gpu1 and 1 more', 'gpu0')
    """
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
