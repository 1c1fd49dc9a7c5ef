"""Options are checked against the annotation of the parameter that takes them.

Options come from files, where every value is plain data, and go to classes and functions of any author. The
annotation turns a mistake into an error message; without it there would be a traceback, or a word would count
as true::

    policy: {name: tfrt, blocking_threads: many}
                                │
    def __init__(self, blocking_threads: int = 0)    ──►   "should be a whole number, not 'many'"

pydantic checks them, like everything else in a file, and as strictly as for JSON: a list may stand for a
tuple and text for a path, but nothing for a number. Annotations that plain data cannot satisfy (a class, a
callable) are for callers in Python; no value from a file matches them. An annotation that cannot be
evaluated is ignored.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any, Final, TypeVar, get_args, get_origin

import numpy as np

from sim.base import plugins
from sim.base.arrays import IntArray
from sim.base.errors import InputError, UnknownOptionError, clip_repr, error_path, nearest
from sim.base.units import parse_bandwidth, parse_bytes, parse_duration, parse_flop_rate, parse_frequency

SUFFIXES: Final[Mapping[str, Callable[..., int]]] = {
    "_ns": parse_duration,
    "_bytes": parse_bytes,
    "_bytes_per_s": parse_bandwidth,
    "_flop_per_s": parse_flop_rate,
    "_hz": parse_frequency,
}
"""Suffixes of parameters that give their unit, with the function that reads such a quantity."""


def parameters(thing: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters that can be given by name, with annotations evaluated if possible.

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
    signature = _signature_once(thing) if isinstance(thing, type | FunctionType) else _signature(thing)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: p for name, p in signature.parameters.items() if p.kind in named}


def _signature(thing: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(thing, eval_str=True)
    except (NameError, AttributeError):  # a name that only a type checker imports
        return inspect.signature(thing)
    except ValueError:  # written in C, and says nothing of its parameters
        return inspect.Signature()


_signature_once = lru_cache(maxsize=1024)(_signature)
"""The points of a sweep inspect the same few classes and methods."""


def spelling(parameter: str) -> str:
    """Return the spelling of a parameter in a file, where values carry their units: without the suffix.

    Examples
    --------
    >>> spelling("time_limit_ns"), spelling("window"), spelling("bandwidth_bytes_per_s")
    ('time_limit', 'window', 'bandwidth')
    """
    for suffix in SUFFIXES:
        if parameter.endswith(suffix):
            return parameter.removesuffix(suffix)
    return parameter


def require_call(name: str, thing: object, *arguments: str, method: str | None = None) -> None:
    """Raise if something cannot be called as its caller is about to: a plugin with another signature.

    Parameters
    ----------
    name : str
        The owner, for the beginning of the message.
    thing : object
        A function or class, or, with `method`, an object that should have it.
    *arguments : str
        Names of the arguments; they appear in the message, only their number is checked.
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
    sim.base.errors.InputError: the kernel 'mine' should take (op, device): too many positional arguments
    """
    args = f"({', '.join(arguments)})"
    called, takes = thing, f"should take {args}"
    if method is not None:
        called, takes = getattr(thing, method, None), f"should have a method {method}{args}"
        if not callable(called):
            raise InputError(f"{name} {takes}; {type(thing).__name__} has none")
    if not callable(called):
        raise InputError(f"{name} should be callable with {args}; found {type(thing).__name__} {thing!r:.60}")
    function = getattr(called, "__func__", None)  # of a method: it also takes the object
    try:
        if isinstance(function, FunctionType):
            signature, arguments = _signature_once(function), ("self", *arguments)
        else:
            signature = inspect.signature(called)
    except ValueError:  # written in C, and says nothing of its parameters
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise InputError(f"{name} {takes}: {error}") from None


def require_methods(owner: str, thing: object, base: type) -> None:
    """Raise if an object has a method of `base` with another signature: see `require_call`."""
    for name, method in vars(base).items():
        if isinstance(method, FunctionType) and not name.startswith("_"):
            _, *args = _signature_once(method).parameters.values()
            require_call(owner, thing, *(p.name for p in args if p.kind is not p.KEYWORD_ONLY), method=name)
            override = getattr(thing, name)
            if inspect.isgeneratorfunction(override) or inspect.iscoroutinefunction(override):
                raise InputError(f"{owner} should have a method {name} that returns; found one that waits")


_T = TypeVar("_T")


def make_plugin(
    group: str, name: str, options: Mapping[str, Any], origin: plugins.Origin, base: type[_T]
) -> _T:
    """Return the object that a name with options stands for, which extends `base`.

    Raises
    ------
    InputError
        As `call_with_options`, or it does not extend `base`, or a method has another signature.
    """
    instance = call_with_options(origin.lookup(group, name), name, options, origin)
    if not isinstance(instance, base):
        raise InputError(f"{name!r} should extend {base.__module__}.{base.__name__}")
    require_methods(f"the {plugins.GROUPS[group]} {name!r}", instance, base)
    return instance


def arguments(
    owner: str, params: Mapping[str, inspect.Parameter], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call for the given options, each checked against its parameter.

    Parameters
    ----------
    owner : str
        The owner of the options, for the beginning of messages.
    params : mapping of str to Parameter
        The possible parameters: see `parameters`.
    options : mapping of str to object
        The options, as in a file; quantities carry their units.

    Raises
    ------
    InputError
        An option does not exist (the nearest is named), a required one is missing, or a value does not
        fit; the path has the option.

    Examples
    --------
    >>> def schedule(ranks: int, *, time_limit_ns: int | None = None): ...
    >>> arguments("mine", parameters(schedule), {"ranks": 2, "time_limit": "5s"})
    {'ranks': 2, 'time_limit_ns': 5000000000}
    >>> arguments("mine", parameters(schedule), {"ranks": 2, "time_limi": "5s"})
    Traceback (most recent call last):
        ...
    sim.base.errors.UnknownOptionError: time_limi: mine has no option 'time_limi'; did you mean 'time_limit'?
    """
    spelled = {spelling(name): parameter for name, parameter in params.items()}
    result = {}
    for key, value in options.items():
        if key not in spelled:
            raise UnknownOptionError(owner, str(key), spelled)
        name = spelled[key].name
        with error_path(key):
            if name != key and value is not None:
                result[name] = SUFFIXES[name.removeprefix(key)](value, what="")
            else:
                result[name] = check_value(spelled[key].annotation, value)
    missing = [key for key, p in spelled.items() if p.default is p.empty and p.name not in result]
    if missing:
        raise InputError(f"{owner} needs the option {missing[0]!r}")
    return result


def call_with_options(thing: Any, name: str, options: Mapping[str, Any], origin: plugins.Origin) -> Any:
    """Return what a name with options stands for: the result of a class or function, or the thing itself.

    Parameters
    ----------
    thing : object
        The object known by the name. A parameter ``origin`` of type `Origin` gets `origin`.
    name : str
        The name, for the beginning of messages.
    options : mapping of str to object
        Values for parameters of `thing`, as for `arguments`.
    origin : Origin
        Resolves files named in options.

    Raises
    ------
    InputError
        As `arguments`.
    """
    params = parameters(thing) if callable(thing) else {}
    param = params.get("origin")
    if param is not None and param.annotation is plugins.Origin:  # for files that its options name
        del params["origin"]
    values = arguments(name, params, options)
    if param is not None and "origin" not in params:
        values["origin"] = origin
    for key, value in values.items():
        if isinstance(value, Path):
            values[key] = origin.file(str(value))
    if not callable(thing):
        return thing
    try:
        _signature(thing).bind(**values)
    except TypeError as error:  # of a parameter that is positional-only
        raise InputError(f"{name} should be callable with options by name: {error}") from None
    return thing(**values)


def check_value(annotation: Any, value: object) -> Any:
    """Return a file's value converted to an annotation; return a Python object unchanged.

    Parameters
    ----------
    annotation : type or other annotation
        ``int``, ``str | None``, ``Sequence[int]``, ``Literal["a", "b"]``, a type of pydantic's.
    value : object
        The value that was given.

    Raises
    ------
    InputError
        The value does not fit; the path leads to the part that does not.

    Examples
    --------
    >>> check_value(int | None, None), check_value(tuple[str, ...], ["a", "b"])
    (None, ('a', 'b'))
    >>> check_value(int | list[int], [1, "x"])
    Traceback (most recent call last):
        ...
    sim.base.errors.InputError: [1]: should be a whole number, not 'x'
    """
    from pydantic import ConfigDict, TypeAdapter, ValidationError
    from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

    if isinstance(annotation, str) or annotation is inspect.Parameter.empty:
        return value
    if get_origin(annotation) is Iterable:  # pydantic would check its items only later
        annotation = Sequence[get_args(annotation)]  # type: ignore[misc]
    try:
        text = json.dumps(value)
    except TypeError:  # not a value from a file: Python code is trusted
        return value
    strict = ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)
    try:
        return TypeAdapter(annotation, config=strict).validate_json(text)
    except ValidationError as error:
        raise _misfit(value, error.errors(include_url=False)) from None
    except (PydanticUndefinedAnnotation, PydanticUserError):  # no annotation that can be read
        return value


def _misfit(value: object, faults: Sequence[Any]) -> InputError:
    """Return the error for a value that does not fit; for a union, that of the nearest members."""
    faults_at: dict[tuple[str | int, ...], list[Any]] = {}
    for fault in faults:
        path: list[str | int] = []
        part: Any = value
        for key in fault["loc"]:  # to which pydantic adds the members of unions
            within_list = isinstance(part, list) and isinstance(key, int)
            if within_list or (isinstance(part, dict) and key in part):
                part = part[key]
                path.append(key)
        faults_at.setdefault(tuple(path), []).append(fault)
    where, nearest_to = max(faults_at.items(), key=lambda item: len(item[0]))
    if nearest_to[0]["type"] == "scenario":
        context = nearest_to[0]["ctx"]
        return InputError(context["message"], path=(*where, *context["path"]))
    return InputError(misfit_text(*nearest_to), path=where)


_PHRASES: Final = {
    "bool_type": "true or false",
    "callable_type": "an object, which only Python code can give",
    "dict_type": "a mapping (KEY: VALUE)",
    "finite_number": "a number",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "iterable_type": "a list",
    "list_type": "a list",
    "model_type": "a mapping (KEY: VALUE)",
    "needs_python_object": "an object, which only Python code can give",
    "string_type": "text",
    "tuple_type": "a list",
}
"""Type of a pydantic error → what the value should be."""


def misfit_text(*faults: Any) -> str:
    """Return what a value should be according to pydantic's errors, and what it is.

    Parameters
    ----------
    *faults : mapping
        Entries of `pydantic.ValidationError.errors`; several if the value fits no member of a union.
    """
    value = faults[0]["input"]
    text = "nothing" if value is None else clip_repr(value)
    if faults[0]["type"] == "literal_error" and isinstance(value, str):
        near = nearest(value, re.findall("'([^']*)'", faults[0]["ctx"]["expected"]))
        text += f"; did you mean {near!r}?" if near else ""
    forms = [_PHRASES.get(fault["type"]) or fault["msg"].removeprefix("Input should be ") for fault in faults]
    if forms[0][0].isupper():  # a complete sentence of pydantic's
        sentence = re.sub(r"^\w+ (should have .*) after validation, not \d+$", r"\1", forms[0])
        return f"{sentence[0].lower()}{sentence[1:]}, not {text}"
    return f"should be {' or '.join(dict.fromkeys(forms))}, not {text}"


# ----------------------------------------------------------------------------------------------------------
# Results of a user's own class, checked once, where they come in.
#
# A compiled loop trusts the numbers that it is given, so a wrong one must not get that far::
#
#     placement, streams, linearizer, cost model, policy as data ──whole_numbers──► a column of int64


def need_whole(thing: object, owner: str, needed: str, optional: str = "", least: int = 0) -> None:
    """Raise on attributes of `thing` that are not whole, or less than `least`; an optional one may be None.

    Floats that are whole (``25e9``) become integers.

    Raises
    ------
    InputError
        The error is about the first such number.

    Examples
    --------
    >>> need_whole(slice(1.5), "link 'wire'", "stop", optional="start step")
    Traceback (most recent call last):
    sim.base.errors.InputError: link 'wire': stop should be a whole number from 0 on, not 1.5
    """
    for name in f"{needed} {optional}".split():
        number = getattr(thing, name)
        if number is None and name in optional.split():
            continue
        if isinstance(number, float) and number.is_integer():
            object.__setattr__(thing, name, number := int(number))  # of a frozen one, too
        if not isinstance(number, int | np.integer) or number < least:
            raise InputError(f"{owner}: {name} should be a whole number from {least} on, not {number!r}")


def need_types(thing: object, owner: str, **types: type | tuple[type, ...]) -> None:
    """Raise on attributes of `thing` that are of none of their types; the message names the first of them.

    Raises
    ------
    InputError
        The error is about the first such attribute.

    Examples
    --------
    >>> need_types(slice("9"), "link 'wire'", stop=int)
    Traceback (most recent call last):
    sim.base.errors.InputError: link 'wire': stop should be of type int, not '9'
    """
    for name, expected in types.items():
        value = getattr(thing, name)
        if not isinstance(value, expected):
            first = expected[0] if isinstance(expected, tuple) else expected
            raise InputError(f"{owner}: {name} should be of type {first.__name__}, not {clip_repr(value)}")


def need_names(names: Iterable[object], owner: str) -> None:
    """Raise on a name that is no text.

    Raises
    ------
    InputError
        The message has the first such name.

    Examples
    --------
    >>> need_names(["crane", 1], "machine: resources")
    Traceback (most recent call last):
    sim.base.errors.InputError: machine: resources: a name should be a text, not 1
    """
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"{owner}: a name should be a text, not {clip_repr(name)}")


def whole_numbers(
    answer: Any,
    source: str,
    n: int | None = None,
    *,
    least: int = 0,
    below: int | IntArray | None = None,
    of: Sequence[str] = (),
) -> IntArray:
    """Return an answer as a column if it consists of whole numbers within a range.

    Parameters
    ----------
    answer : Any
        The returned value.
    source : str
        The source of the answer: ``"Mine.place"``.
    n : int, optional
        Required number of numbers.
    least : int
    below : int or array of int, optional
        Upper limit, exclusive, of each number.
    of : sequence of str
        The op of each number.

    Raises
    ------
    InputError
        The answer is anything else; the message has the op and the value.

    Examples
    --------
    >>> whole_numbers([0, 1], "Mine.place", 2, below=2).tolist()
    [0, 1]
    >>> whole_numbers([0, True], "Mine.place", 2, below=2, of=["a", "b"])
    Traceback (most recent call last):
    sim.base.errors.InputError: Mine.place returned True for op 'b', should be a whole number from 0 to 1
    """
    many = "whole numbers" if n is None else f"{n} whole number{'' if n == 1 else 's'}"
    if (
        isinstance(answer, str | bytes)
        or not hasattr(answer, "__len__")
        or not hasattr(answer, "__getitem__")
    ):
        raise InputError(f"{source} returned {clip_repr(answer, 40)}, should be a sequence of {many}")
    if isinstance(answer, np.ndarray) and answer.ndim != 1:
        raise InputError(f"{source} returned an array of shape {answer.shape}, should be {many}")
    if n is not None and len(answer) != n:
        per_op = f", one for each of {n} ops" if len(of) == n else ""
        raise InputError(f"{source} returned a list of {len(answer)}, should be {many}{per_op}")
    if isinstance(answer, np.ndarray) and answer.dtype.kind in "iu":
        column = answer
    else:
        values = list(answer)
        for i, value in enumerate(values):
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise _wrong_number(source, value, i, least, below, of)
        column = np.array(values, dtype=object)
    wrong = np.asarray((column < least) | (column > np.iinfo(np.int64).max), dtype=bool)
    if below is not None:
        wrong |= np.asarray(column >= below, dtype=bool)
    if wrong.any():
        i = int(wrong.argmax())
        raise _wrong_number(source, column[i], i, least, below, of)
    return column.astype(np.int64, copy=False)


def _wrong_number(
    source: str, value: Any, i: int, least: int, below: int | IntArray | None, ops: Sequence[str]
) -> InputError:
    op = ops[i] if i < len(ops) else None
    upper = None if below is None else (below if isinstance(below, int) else int(below[i])) - 1
    limits = f"from {least} on" if upper is None else f"from {least} to {upper}"
    where = f"at position {i}" if op is None else f"for op {op!r}"
    text = clip_repr(value.item() if isinstance(value, np.generic) else value, 40)
    error = InputError(f"{source} returned {text} {where}, should be a whole number {limits}")
    return error if op is None else error.about(op)
