"""Text of an HLO module: ``lowered.as_text(dialect="hlo")``, ``compiled.as_text()``, XLA's dumps.

::

    HloModule jit_f, is_scheduled=true, num_partitions=4, ...

    %fused_computation (p: f32[8,32]) -> f32[8,32] {
      %p = f32[8,32]{1,0} parameter(0)
      ROOT %exp.1 = f32[8,32]{1,0} exponential(%p)
    }

    ENTRY %main (x: f32[8,32]) -> f32[8,32] {
      %x = f32[8,32]{1,0} parameter(0)
      ROOT %fusion = f32[8,32]{1,0} fusion(%x), kind=kLoop, calls=%fused_computation, metadata={...}
    }

A line is an instruction: name, shape with its layout, opcode, operands, attributes. A long instruction
continues on further lines. Only attributes on which a cost depends are kept.

Source: https://openxla.org/xla/operation_semantics; ``xla/hlo/parser/hlo_parser.cc``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from devices.describe.field_types import sized_dtype
from scenarios.importers.files import DEPTH, MARKS, parts
from scenarios.importers.xla_costs import Array, Computation, Instruction, Shape
from sim.base.errors import InputError

MOST_DEPTH: Final = 100
"""Maximum nesting of shapes, regions and calls."""


@dataclass
class XlaModule:
    """A program.

    Attributes
    ----------
    name : str
    entry : Computation
    n_devices : int
        Number of devices that run it, each its part.
    compiled : bool
        Whether its instructions are those that run.
    for_cpu : bool
        Whether it was compiled for a CPU, as shown by settings of XLA's CPU backend only.
    simplified : bool
        Whether XLA drops products with 1 and sums with 0 when it converts the text to HLO.
    """

    name: str
    entry: Computation
    n_devices: int = 1
    compiled: bool = False
    for_cpu: bool = False
    simplified: bool = False


def dtype_of(name: str) -> str:
    """Return our name for a type of HLO or StableHLO.

    Raises
    ------
    InputError
        The type has no size.
    """
    if (dtype := sized_dtype(name)) is not None:
        return dtype
    if narrow := re.fullmatch(r"f([48])e\w{3,9}", name.lower()):
        return f"fp{narrow[1]}"
    raise InputError(f"a tensor of {name:.40}, whose size is not known")


@contextmanager
def at_line(number: int) -> Iterator[None]:
    """Prefix the message of an error with a line of the file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"line {number}: {error}") from None
    except (IndexError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"line {number}: cannot be read ({type(error).__name__}: {error!s:.80})") from None


# -- brackets -------------------------------------------------------------------------------------


def closing(text: str, opening: int) -> int:
    """Return the position of the bracket that closes the one at `opening`.

    Raises
    ------
    InputError
        It is not closed.
    """
    depth = 0
    for mark in MARKS.finditer(text, opening):
        depth += DEPTH.get(mark[0], 0)
        if not depth:
            return mark.start()
    raise InputError("a bracket that does not close")


def _open_brackets(line: str) -> int:
    """Return how many more brackets a line opens than it closes."""
    return sum(DEPTH.get(mark[0], 0) for mark in MARKS.finditer(line))


def numbers(text: str) -> list[int]:
    """Return the whole numbers in a text.

    Raises
    ------
    InputError
        A number is too long for a program.
    """
    digits = re.findall(r"-?\d+", text)
    if any(len(number) > _DIGITS for number in digits):
        raise InputError(f"a number of more than {_DIGITS} digits")
    return [int(number) for number in digits]


_DIGITS: Final = 18

# -- shapes ---------------------------------------------------------------------------------------

_ARRAY: Final = re.compile(r"\s*(\w+)\[([^\]]*)\](?:\{[^}]*\})?")
_COMMENT: Final = re.compile(r"/\*[^*]*\*/")


def _shape(text: str, depth: int = 0) -> Shape:
    """Return the shape that is the beginning of a text."""
    if depth > MOST_DEPTH:
        raise InputError(f"a shape with more than {MOST_DEPTH} tuples in one another")
    if text.startswith("("):
        return tuple(_shape(part, depth + 1) for part in parts(text[1:]))
    match = _ARRAY.match(text)
    if match is None:
        raise InputError(f"no shape: {text[:40]!r}")
    return () if match[1] in ("token", "opaque") else Array(dtype_of(match[1]), tuple(numbers(match[2])))


# -- modules --------------------------------------------------------------------------------------

_INSTRUCTION: Final = re.compile(r"(ROOT )?%?([\w.$:\-]+) = ")
_HEADER: Final = re.compile(r"(ENTRY )?%?([\w.$:\-]+) [({]")
_OPCODE: Final = re.compile(r"\s([a-z][a-z0-9\-]*)\(")
_DEVICE_COUNTS: Final = re.compile(r"\b(num_partitions|replica_count)=(\d{1,6})\b")


def read_hlo(text: str) -> XlaModule:
    """Return the program in an HLO text.

    Raises
    ------
    InputError
        With the line: an instruction or a shape is invalid, a computation does not exist, ...
    """
    first = text[max(text.find("HloModule "), 0) :].partition("\n")[0]
    computations: dict[str, Computation] = {}
    entry: Computation | None = None
    current: Computation | None = None
    statements: list[tuple[int, Computation, list[str]]] = []
    depth = 0
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if current is None:
            header = _HEADER.match(stripped) if stripped.endswith("{") else None
            if header is not None and not stripped.startswith("HloModule"):
                with at_line(number):
                    if header[2] in computations:
                        raise InputError(f"the computation {header[2]} is there twice")
                current = computations[header[2]] = Computation(header[2])
                entry = current if header[1] else entry
        elif stripped.startswith("}") and depth <= 0:
            current, depth = None, 0
        elif _INSTRUCTION.match(stripped):
            statements.append((number, current, [stripped]))
            depth = _open_brackets(stripped)
        elif stripped and not stripped.startswith("//"):
            if not statements or statements[-1][1] is not current:
                raise InputError(f"line {number}: no instruction: {stripped[:60]!r}")
            statements[-1][2].append(stripped)
            depth += _open_brackets(stripped)
    if current is not None:
        raise InputError(f"the file ends in the middle of the computation {current.name}")
    if entry is None:
        raise InputError("has no ENTRY computation")
    for number, computation, lines in statements:
        with at_line(number):
            instruction, called = _instruction("\n".join(lines))
            if instruction.name in computation.instructions:
                raise InputError(f"{instruction.name} is there twice")
            computation.instructions[instruction.name] = instruction
            if lines[0].startswith("ROOT ") or not computation.root[0]:
                computation.root = instruction.name, None
            for name in called:
                if name not in computations:
                    raise InputError(f"{instruction.name} calls {name}, which is not in the file")
                instruction.called.append(computations[name])
    named = re.match(r"HloModule\s+([\w.$:\-]+)", first)
    counts = {key: int(n) for key, n in _DEVICE_COUNTS.findall(first)}
    fused = any(op.opcode == "fusion" for body in computations.values() for op in body.instructions.values())
    return XlaModule(
        named[1] if named else "module",
        entry,
        counts.get("num_partitions", 1) * counts.get("replica_count", 1),
        "is_scheduled=true" in first or fused,
        '"outer_dimension_partitions"' in text,
    )


_CALLS: Final = {
    "while": ("condition", "body"),
    "conditional": ("true_computation", "false_computation", "branch_computations"),
    "select-and-scatter": ("select", "scatter"),
}


def _instruction(text: str) -> tuple[Instruction, list[str]]:
    """Return an instruction, and the names of the computations that it calls."""
    head = _INSTRUCTION.match(text)
    if head is None:
        raise InputError(f"no instruction: {text[:60]!r}")
    if "/*" in text:
        text = _COMMENT.sub("", text)
    match = _OPCODE.search(text, head.end())
    if match is None:
        raise InputError(f"no opcode: {text[head.end() : head.end() + 40]!r}")
    shape, opcode, opening = _shape(text[head.end() : match.start()]), match[1], match.end() - 1
    end = closing(text, opening)
    operands, tail = text[opening + 1 : end], text[end + 1 :].strip()
    if tail and not tail.startswith(","):
        raise InputError(f"no attribute of {head[2]}: {tail[:40]!r}")
    pairs = (part.partition("=") for part in parts(tail))
    attributes = {key.strip(): value.strip() for key, _, value in pairs}
    instruction = Instruction(head[2], head[2], opcode, shape, [])
    if opcode in ("constant", "parameter", "iota"):
        if opcode == "parameter":
            instruction.attributes["number"] = numbers(operands)[0]
        elif opcode == "constant" and isinstance(shape, Array) and not shape.dims:
            instruction.attributes["value"] = number_of(operands)
    else:
        instruction.operands = [(part.split()[-1].removeprefix("%"), None) for part in parts(operands)]
    _keep(instruction, attributes)
    called = _CALLS.get(opcode, ("to_apply", "calls"))
    # A custom call names helpers, and a collective its sum, on which no cost depends.
    names = [] if opcode == "custom-call" else [attributes[key] for key in called if key in attributes]
    return instruction, [name for value in names for name in re.findall(r"[\w.$:\-]+", value)]


def _keep(instruction: Instruction, attributes: dict[str, str]) -> None:
    """Keep the attributes that costs depend on."""
    into = instruction.attributes
    for key, value in attributes.items():
        if key in _READERS:
            into[key] = _READERS[key](value)
        elif key == "custom_call_target":
            into["target"] = value.strip('"')
        elif key == "backend_config":
            _keep_config(value.replace("\\", ""), into)
        elif key == "metadata" and (name := re.search(r'op_name="([^";]*)', value)):
            into["op_name"] = name[1]


_TRIPS: Final = re.compile(r'"known_trip_count":\s*\{\s*"n":\s*"?(\d{1,18})')
_DOT_AXES: Final = re.compile(r'"([lr]hs)_(contracting|batch)_dimensions":\s*\[([^\]]*)\]')


def _keep_config(config: str, into: dict[str, Any]) -> None:
    """Keep the backend's facts about loops, products of libraries, and synchronous instructions."""
    if trips := _TRIPS.search(config):
        into["trips"] = int(trips[1])
    for side, axes_kind, axes in _DOT_AXES.findall(config):
        into[f"{side}_{axes_kind}_dims"] = numbers(axes)
    if re.search(r'"is_sync":\s*true', config):
        into["synchronous"] = True


def _window(text: str) -> dict[str, Any]:
    """Return the values of a window for each axis: ``{size=3x3 pad=0_1x0_1}``."""
    window: dict[str, Any] = {}
    for key, value in re.findall(r"(\w+)=([\d_x\-]+)", text):
        axes = value.split("x")
        if key == "pad":
            ends = (axis.partition("_") for axis in axes)
            window[key] = [(int(low), int(high)) for low, _, high in ends]
        else:
            window[key] = [number for axis in axes for number in numbers(axis)]
    return window


def replica_groups(text: str) -> list[list[int]]:
    """Return groups of ranks, given as a list or as the rows of an array.

    Examples
    --------
    >>> replica_groups("{{0,1},{2,3}}"), replica_groups("[2,2]<=[2,2]T(1,0)")
    ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
    """
    if "<=" not in text:
        return [numbers(group) for group in re.findall(r"\{([^{}]*)\}", text) if group.strip()]
    shape, _, rest = text.partition("<=")
    source, _, order = rest.partition("T")
    rows, sizes = numbers(shape), numbers(source)
    n, axes = math.prod(sizes), numbers(order) or [*range(len(sizes))]
    fits = len(rows) == 2 and rows[0] * rows[1] == n and 0 < n <= _MAX_RANKS
    if not fits or sorted(axes) != [*range(len(sizes))]:
        raise InputError(f"replica groups {text[:60]!r}")
    groups: list[list[int]] = np.arange(n).reshape(sizes).transpose(axes).reshape(rows).tolist()
    return groups


_MAX_RANKS: Final = 100_000
_LISTS: Final = (
    *("lhs_contracting_dims", "rhs_contracting_dims", "lhs_batch_dims", "rhs_batch_dims"),
    *("dimensions", "slice_sizes", "fft_length"),
)
_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    **dict.fromkeys(_LISTS, numbers),
    **dict.fromkeys(("index", "feature_group_count", "batch_group_count"), lambda text: numbers(text)[0]),
    **dict.fromkeys(("dim_labels", "direction"), str),
    "window": _window,
    "replica_groups": replica_groups,
    "source_target_pairs": lambda text: [*zip(*[iter(numbers(text))] * 2, strict=False)],
}
"""Attributes that are kept as they are named, and how each is read."""


def number_of(text: str) -> int | float | None:
    """Return the value of a scalar constant, a number or truth value, or None."""
    text = text.strip()
    if text in ("true", "false"):
        return int(text == "true")
    try:
        return int(text) if re.fullmatch(r"-?\d{1,18}", text) else float(text)
    except ValueError:
        return None
