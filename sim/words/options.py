"""What an option may be: the annotation of the parameter that takes it says so, and is held to it.

Options come out of files, where every value is plain data, and go to classes and functions that anybody may
write. Nothing but the annotation stands between a slip of the pen and a traceback, or worse, a word taken
for true::

    policy: {name: tfrt, blocking_threads: many}
                                │
    def __init__(self, blocking_threads: int = 0)    ──►   "should be a whole number, not 'many'"

Annotations that say more than plain data can be (a class, a callable) are for callers in Python; no value
of a file fits them. One that cannot be read says nothing and forbids nothing.
"""

from __future__ import annotations

import collections.abc
import inspect
import math
import types
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin

from sim.words.errors import InputError
from sim.words.units import parse_bytes, parse_duration

__all__ = ["SUFFIXES", "misfit", "parameters", "require_call", "spelling"]

SUFFIXES: Final[Mapping[str, Callable[..., int]]] = {"_ns": parse_duration, "_bytes": parse_bytes}
"""Endings of a parameter that carry its unit, and how such a quantity is read."""

_LISTS = (list, tuple, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_MAPPINGS = (dict, collections.abc.Mapping)
_PLAIN = (str, Real, list, tuple, Mapping, type(None))
_ANYTHING = (Any, object, inspect.Parameter.empty)
_UNION = (Union, types.UnionType)


def parameters(thing: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters that can be given by name, with annotations evaluated where they can be.

    Parameters
    ----------
    thing : callable
        A class or a function.

    Examples
    --------
    >>> def f(self, /, window: int | None = None, *rest): ...
    >>> parameters(f)
    {'window': <Parameter "window: int | None = None">}
    """
    try:
        signature = inspect.signature(thing, eval_str=True)
    except (NameError, AttributeError):  # a name that only a type checker imports
        signature = inspect.signature(thing)
    except ValueError:  # written in C, and says nothing of its parameters
        return {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: p for name, p in signature.parameters.items() if p.kind in named}


def spelling(parameter: str) -> str:
    """Return how a parameter is written in a file, where values carry their units: without its own.

    Examples
    --------
    >>> spelling("time_limit_ns"), spelling("window")
    ('time_limit', 'window')
    """
    for suffix in SUFFIXES:
        if parameter.endswith(suffix):
            return parameter.removesuffix(suffix)
    return parameter


def require_call(what: str, thing: object, *arguments: str, method: str | None = None) -> None:
    """Refuse what cannot be called as its caller is about to: a plugin with another signature.

    Parameters
    ----------
    what : str
        Whose it is, the beginning of the message.
    thing : object
        A function or class, or, with `method`, an object that should have it.
    *arguments : str
        What it will be called with; these words are for the message, their number counts.
    method : str, optional

    Raises
    ------
    InputError
        It is not callable, has no such method, or takes other arguments.

    Examples
    --------
    >>> require_call("the kernel 'mine'", lambda op: 7, "op", "device")
    Traceback (most recent call last):
        ...
    sim.words.errors.InputError: the kernel 'mine' should take (op, device): too many positional arguments
    """
    form = f"({', '.join(arguments)})"
    called, takes = thing, f"should take {form}"
    if method is not None:
        called, takes = getattr(thing, method, None), f"should have a method {method}{form}"
        if not callable(called):
            raise InputError(f"{what} {takes}; {type(thing).__name__} has none")
    if not callable(called):
        raise InputError(f"{what} should be callable with {form}; found {type(thing).__name__} {thing!r:.60}")
    try:
        signature = inspect.signature(called)
    except ValueError:  # written in C, and says nothing of its parameters
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise InputError(f"{what} {takes}: {error}") from None


def misfit(annotation: Any, value: object) -> str | None:
    """Return what `value` should be by the annotation, in words; None: it fits.

    Parameters
    ----------
    annotation : type or other annotation
        ``int``, ``str | None``, ``Sequence[int]``, ``Literal["a", "b"]``, a class.
    value : object
        What was given.

    Examples
    --------
    >>> misfit(int, "many"), misfit(int | None, None), misfit(list[str], "ab")
    ('a whole number', None, 'a list, each item text')
    >>> misfit(Literal["lifo", "fifo"], "filo")
    "'lifo' or 'fifo'"
    """
    return None if _fits(annotation, value) else _words(annotation)


def _fits(annotation: Any, value: object) -> bool:
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin in _UNION:
        return any(_fits(each, value) for each in inside)
    if origin is Literal:
        return any(value == each and isinstance(value, type(each)) for each in inside)
    if annotation is None or annotation is types.NoneType:
        return value is None
    if annotation is bool:
        return isinstance(value, bool)
    if annotation is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if annotation is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if annotation is str:
        return isinstance(value, str)
    if annotation is Path:
        return isinstance(value, (str, Path))
    if (origin or annotation) in _LISTS:
        plain = isinstance(value, (list, tuple))
        if not plain or not inside:
            return plain or not isinstance(value, _PLAIN)  # another sequence: Python code knows what it gives
        assert isinstance(value, (list, tuple))
        return all(_fits(inside[0], item) for item in value)
    if (origin or annotation) in _MAPPINGS:
        return isinstance(value, Mapping) and (
            not inside or all(_fits(inside[0], k) and _fits(inside[1], v) for k, v in value.items())
        )
    if origin is collections.abc.Callable or (inspect.isclass(annotation) and annotation not in _ANYTHING):
        return not isinstance(value, _PLAIN)
    return True


def _words(annotation: Any) -> str:
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin in _UNION:
        return " or ".join(_words(each) for each in inside if each is not types.NoneType)
    if origin is Literal:
        return " or ".join(map(repr, inside))
    if (origin or annotation) in _LISTS:
        return f"a list, each item {_words(inside[0])}" if inside else "a list"
    if (origin or annotation) in _MAPPINGS:
        return (
            f"a mapping (KEY: VALUE), each value {_words(inside[1])}" if inside else "a mapping (KEY: VALUE)"
        )
    plain = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
        Path: "a file's name",
    }
    name = getattr(annotation, "__name__", str(annotation))
    return plain.get(annotation, f"an object ({name}), which only Python code can give")
