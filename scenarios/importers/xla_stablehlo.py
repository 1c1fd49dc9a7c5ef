"""Text of a StableHLO module: ``jax.jit(f).lower(...).as_text()``, or from other frameworks.

::

    module @jit_f attributes {mhlo.num_partitions = 1 : i32, ...} {
      func.func public @main(%arg0: tensor<8x32xf32>) -> (tensor<8xf32> {jax.result_info = "result"}) {
        %cst = stablehlo.constant dense<0.0> : tensor<f32>
        %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<...
        %1 = "stablehlo.all_reduce"(%0) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          ...
        }) : (tensor<8xf32>) -> tensor<8xf32>
        return %1 : tensor<8xf32>
      }
    }

A line begins an operation, or closes a region of one. Operations become the equivalent instructions of
HLO, with attributes under HLO's names; a region is a computation that also reads values around it.

Source: https://openxla.org/stablehlo/spec.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, Final

from scenarios.importers.xla_costs import Array, Computation, Instruction, Operand, Shape, words
from scenarios.importers.xla_hlo import MOST_DEPTH, XlaModule, at_line, dtype_of, number_of, numbers
from sim.base.errors import InputError

_RENAMED: Final = words(
    """dot-general:dot broadcast-in-dim:broadcast optimization-barrier:opt-barrier case:conditional
    if:conditional top-k:topk uniform-quantize:convert uniform-dequantize:convert square:multiply
    composite:call func.call:call sdy.manual-computation:manual sdy.sharding-constraint:opt-barrier
    sdy.reshard:opt-barrier"""
)
"""Operations with another name in HLO."""

_TYPE: Final = re.compile(
    r"tensor<((?:[\d?]++x)*+)(?:complex<f(32|64)>|(?:!quant\.uniform<)?([\w.!]+))[^<>]*>?>|!stablehlo\.token"
)
_VALUE: Final = re.compile(r"%([\w$.\-]+)(?:#(\d{1,6}))?")
_OPERATION: Final = re.compile(r'(?:(%[^=]*?) = )?"?([a-zA-Z_][\w.$]*)"?')
_SYMBOL: Final = r'@("[^"]*"|[\w.$\-]+)'
_RESULT: Final = re.compile(r"%([\w$.\-]+)(?::(\d{1,6}))?")
_LOCATION: Final = re.compile(r' loc\((?:[^()"]|"[^"]*"|\((?:[^()"]|"[^"]*")*+\))*+\)')
_ARGUMENT: Final = re.compile(r"%([\w$.\-]+) ?: ?(tensor<(?:[^<>]|<[^<>]*>)*+>|![\w.]+)")
_NUMBERS: Final = r"(?:array<i64: ([^>]*)>|dense<([^>]*)> : tensor<([\dx]*)i64>|\[([^\]]*)\])"
_LOOP: Final = re.compile(r"%([\w$.\-]+) = %([\w$.\-]+)(?:#(\d{1,6}))?")
_RETURNS: Final = frozenset({"return", "func.return", "stablehlo.return", "sdy.return", "mhlo.return"})


def read_stablehlo(text: str) -> XlaModule:
    """Return the program in a StableHLO text.

    Raises
    ------
    InputError
        With the line: an operation has no types, a function does not exist, a region does not end, ...
    """
    if " loc(" in text:
        text = _LOCATION.sub("", text)
    lines = _Lines(text)
    name, devices = "module", 1
    functions: dict[str, Computation] = {}
    entry: Computation | None = None
    while (line := lines.take()) is not None:
        if line.startswith("module"):
            if match := re.match(r"module @([\w.$\-]+)", line):
                name = match[1]
            for count in re.findall(r"mhlo\.num_(?:partitions|replicas) = (\d{1,6})", line):
                devices *= int(count)
        elif function := re.match(rf"func\.func (public |private )?{_SYMBOL} ?\((.*)", line):
            with at_line(lines.number):
                if not line.endswith("{"):
                    raise InputError(f"the function {function[2]} has no body")
                if function[2] in functions:
                    raise InputError(f"the function {function[2]} is there twice")
            computation = Computation(function[2])
            for argument, types in _ARGUMENT.findall(function[3].partition(" -> ")[0]):
                _add_argument(computation, argument, types)
            functions[function[2]] = computation
            lines.body(computation)
            if entry is None or function[2] == "main":
                entry = computation
        elif not re.match(r"[}#]|//|sdy\.mesh|$", line):
            raise InputError(f"line {lines.number}: no function: {line[:60]!r}")
    if entry is None:
        raise InputError("has no function")
    for number, instruction, callee in lines.calls:
        with at_line(number):
            if callee not in functions:
                raise InputError(f"calls @{callee}, which is not in the file")
        instruction.called.append(functions[callee])
    return XlaModule(name, entry, devices, simplified=True)


class _Lines:
    """The lines of a module, starting with the next one to read."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self.number = 0
        self.calls: list[tuple[int, Instruction, str]] = []
        self._depth = 0

    def take(self) -> str | None:
        """Return the next line and move past it; None at the end."""
        if self.number >= len(self._lines):
            return None
        self.number += 1
        return self._lines[self.number - 1].strip()

    def body(self, into: Computation) -> str:
        """Read operations up to the line that closes their region; return that line."""
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise InputError(f"line {self.number}: more than {MOST_DEPTH} regions in one another")
        while (line := self.take()) is not None:
            if line.startswith("}"):
                self._depth -= 1
                return line
            if line.startswith("^"):
                for argument, types in _ARGUMENT.findall(line):
                    _add_argument(into, argument, types)
            elif line and not line.startswith(("//", "#")):
                self._operation(line, into)
        raise InputError("the file ends in the middle of a function")

    def _operation(self, line: str, into: Computation) -> None:
        first_line = self.number
        pairs = _LOOP.findall(line) if "stablehlo.while(" in line else []
        if pairs:
            line = line.partition(" attributes {")[0]
        head, regions = line, []
        opens = line.endswith("{")
        following = self._lines[self.number].strip() if self.number < len(self._lines) else ""
        if not opens and re.match(r"(cond|reducer)\b", following):
            line, opens = self.take() or "", True
        while opens:
            region = Computation(into.name, outer=into)
            for (argument, _, _), shape in zip(pairs, _shapes(head.rpartition(" : ")[2]), strict=False):
                _put_argument(region, argument, shape)
            if " (%" in line or line.startswith("reducer"):
                begin = line.rfind(" (%") if head == line else 0
                for argument, types in _ARGUMENT.findall(line, begin):
                    _add_argument(region, argument, types)
            line = self.body(region)
            regions.append(region)
            opens = line.endswith("{")
        with at_line(first_line):
            self._add(head, line if regions else "", regions, into)

    def _add(self, head: str, tail: str, regions: list[Computation], into: Computation) -> None:
        """Add an operation: its line, the line that closes its last region, and its regions."""
        match = _OPERATION.match(head)
        if match is None:
            raise InputError(f"no operation: {head[:60]!r}")
        name, rest = match[2], head[match.end() :]
        if name in _RETURNS:
            values = _operands(_VALUE.findall(rest.partition(" : ")[0]))
            into.root = values[0] if len(values) == 1 else ("return", None)
            if len(values) != 1:
                shape = tuple(into.shape(value) for value in values)
                into.instructions["return"] = Instruction("return", "return", "tuple", shape, values)
            return
        before, _, types = rest.rpartition(" : ")
        if " : " in tail:
            before, types = rest, tail.partition(" : ")[2]
        opcode = name.removeprefix("stablehlo.").removeprefix("mhlo.").removeprefix("chlo.").replace("_", "-")
        opcode = _RENAMED.get(opcode, opcode)
        results = [(result[1], int(result[2] or 1)) for result in _RESULT.finditer(match[1] or "")]
        shapes = _shapes(types.rpartition("->")[2] if "->" in types else types)
        count = sum(n for _, n in results)
        if len(shapes) < count and len(shapes) == 1:
            shapes *= min(count, 2)
        if len(shapes) < count:
            raise InputError(f"{name} has {count} result(s), and {len(shapes)} type(s)")
        shapes = shapes[len(shapes) - count :]
        if opcode == "manual":
            before = before[: before.find(")")]
        attributes: dict[str, Any] = {}
        operands = _operands(_VALUE.findall(before))
        if opcode == "while":
            operands = _operands(pair[1:] for pair in _LOOP.findall(before)) or operands
        elif opcode == "reduce" and not before.startswith(", "):
            operands = [*operands[::2], *operands[1::2]]
        _keep(name, opcode, before, types, attributes)
        result_shape: Shape = shapes[0] if count == 1 else tuple(shapes)
        key = results[0][0] if results else f"{name}@{len(into.instructions)}"
        label = f"{name.rpartition('.')[2]}.{key}" if key.isdigit() else key
        instruction = Instruction(key, label, opcode, result_shape, operands, attributes, regions)
        if key in into.instructions:
            raise InputError(f"%{key} is there twice")
        into.instructions[key] = instruction
        if len(results) > 1:  # each has a name of its own
            index = 0
            for var, n in results:
                part: Shape = shapes[index] if n == 1 else tuple(shapes[index : index + n])
                if index:
                    into.instructions[var] = Instruction(var, var, "get-tuple-element", part, [(key, index)])
                index += n
        if opcode == "call":
            callee = re.search(_SYMBOL, rest)
            if callee is None:
                raise InputError("calls no function")
            self.calls.append((self.number, instruction, callee[1]))


def _operands(matches: Iterable[tuple[str, ...]]) -> list[Operand]:
    """Return operands by name and number of the result, which is None if there is only one."""
    return [(name, int(index) if index else None) for name, index in matches]


def _put_argument(into: Computation, name: str, shape: Shape) -> None:
    number = sum(op.opcode == "parameter" for op in into.instructions.values())
    into.instructions[name] = Instruction(name, name, "parameter", shape, [], {"number": number})


def _add_argument(into: Computation, name: str, types: str) -> None:
    shapes = _shapes(types)
    if len(shapes) != 1:
        raise InputError(f"the argument %{name} has no type of a tensor: {types[:60]!r}")
    _put_argument(into, name, shapes[0])


def _shapes(text: str) -> list[Shape]:
    shapes: list[Shape] = []
    for match in _TYPE.finditer(text):
        if match[0].startswith("!"):
            shapes.append(())
            continue
        if "?" in match[1]:
            raise InputError(f"has the open shape {match[0][:60]}; lower it with inputs of known shapes")
        dtype = f"complex{2 * int(match[2])}" if match[2] else dtype_of(_plain(match[3]))
        shapes.append(Array(dtype, tuple(numbers(match[1].replace("x", " ")))))
    return shapes


def _plain(name: str) -> str:
    """Return HLO's name of an MLIR type: ``i32`` is signed, ``i1`` is a truth value."""
    if name == "i1":
        return "pred"
    if match := re.fullmatch(r"(u?)i(\d+)", name):
        return f"{'u' if match[1] else 's'}{match[2]}"
    return name


# -- attributes -----------------------------------------------------------------------------------


def _list(key: str, text: str) -> list[int] | None:
    """Return the numbers of an attribute; an array of equal numbers is expanded."""
    match = re.search(rf"\b{key} = {_NUMBERS}", text)
    if match is None:
        return None
    values = numbers(match[1] or match[2] or match[4] or "")
    shape = numbers((match[3] or "").replace("x", " "))
    return values * min(math.prod(shape), 10_000) if len(values) == 1 else values


def _keep(name: str, opcode: str, text: str, types: str, into: dict[str, Any]) -> None:
    """Keep the attributes that costs depend on, under HLO's names."""
    if opcode == "dot":
        for hlo, mlir in (("contracting", "contracting"), ("batch", "batching")):
            if axes := re.search(rf"{mlir}_dims = \[([^\]]*)\] x \[([^\]]*)\]", text):
                into[f"lhs_{hlo}_dims"], into[f"rhs_{hlo}_dims"] = numbers(axes[1]), numbers(axes[2])
            for side in ("lhs", "rhs"):
                if (listed := _list(f"{side}_{mlir}_dimensions", text)) is not None:
                    into[f"{side}_{hlo}_dims"] = listed
    elif opcode == "constant" and (value := re.search(r"dense<([^<>]*)>", text)):
        into["value"] = number_of(value[1])
        into["splat"] = "[" not in value[1] and '"' not in value[1]
    elif opcode == "compare":
        direction = re.search(r"\b(EQ|NE|LT|LE|GT|GE)\b", text)
        into["direction"] = direction[1] if direction else "EQ"
    elif opcode == "convolution":
        _keep_convolution(text, into)
    elif opcode in ("reduce-window", "select-and-scatter"):
        size = _list("window_dimensions", text) or []
        pads = _list("padding", text) or [0] * 2 * len(size)
        into["window"] = {"size": size, "pad": [*zip(pads[::2], pads[1::2], strict=False)]}
    elif opcode == "reduce":
        if reducer := re.search(r"applies (?:stablehlo|mhlo)\.(\w+)", text):
            into["by"] = reducer[1]
    elif opcode == "gather":
        into["slice_sizes"] = _list("slice_sizes", text) or []
    elif opcode == "fft":
        into["fft_length"] = _list("length", text) or _list("fft_length", text) or []
    elif opcode == "transpose":
        into["dimensions"] = _list("dims", text) or _list("permutation", text) or []
    elif opcode == "custom-call":
        target = re.search(r'@([\w.$\-]+)|call_target_name = "([^"]*)"', text)
        into["target"] = (target[1] or target[2]) if target else ""
    elif opcode == "get-tuple-element":
        into["index"] = numbers(text.rpartition("[")[2])[0]
    if groups := re.search(rf"\breplica_groups = {_NUMBERS}", text):
        rows = numbers((groups[3] or "").replace("x", " "))
        listed = numbers(groups[2] or "")
        width = rows[1] if len(rows) == 2 and rows[1] else 1
        into["replica_groups"] = [listed[k : k + width] for k in range(0, len(listed), width)]
    if (pairs := _list("source_target_pairs", text)) is not None:
        into["source_target_pairs"] = [*zip(pairs[::2], pairs[1::2], strict=False)]


def _keep_convolution(text: str, into: dict[str, Any]) -> None:
    labels = re.search(r"dim_numbers = \[([^\]]*)\]x\[([^\]]*)\]->\[([^\]]*)\]", text)
    if labels is None:
        raise InputError("a convolution without dim_numbers")
    image, kernel, output = (re.sub(r"[\s,]", "", axes) for axes in labels.groups())
    into["dim_labels"] = f"{image}_{kernel}->{output}"
    window: dict[str, Any] = {}
    for key in ("stride", "lhs_dilate", "rhs_dilate"):
        if match := re.search(rf"\b{key} = \[([^\]]*)\]", text):
            window[key] = numbers(match[1])
    if match := re.search(r"\bpad = \[((?:\[[^\]]*\][,\s]*)*)\]", text):
        pads = numbers(match[1])
        window["pad"] = [*zip(pads[::2], pads[1::2], strict=False)]
    into["window"] = window
    for key in ("feature_group_count", "batch_group_count"):
        if match := re.search(rf"{key} = (\d{{1,18}})", text):
            into[key] = int(match[1])
