"""Programs of JAX and XLA as text: each instruction with its shape, and the collectives of all devices.

::

    lowered.as_text()               StableHLO   ─┐
    lowered.as_text(dialect="hlo")  HLO         ─┼──► instructions ──► ops with kinds, sizes, flop and bytes
    compiled.as_text()              HLO, fused  ─┘                     on each device its part

* Calls are inlined, and loops whose trip counts follow from the text, as those of ``scan`` and ``fori_loop``.
* A fusion is one op: the flop of all its instructions, the bytes that it reads and writes, and kind and sizes
  of its heaviest product, convolution or other instruction. The attribute ``fused`` lists all kinds.
* Arguments and constant arrays are parameters. Tuples, bitcasts and reshapes are not ops. In a text that
  is not compiled, neither are broadcasts, iotas and arithmetic on loop counters: XLA fuses them.
* In a program for several devices each runs its part (``gpu0``, ``gpu1``, ...), and collectives meet by
  replica groups. A start and its done are one op, on stream 1 beside the others on stream 0.
"""

from __future__ import annotations

import operator
import re
import warnings
from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from policies.parallel.rank_grid import MOST_RANKS, add_ranks, gpus
from scenarios.importers import xla_costs as costs
from scenarios.importers.files import stem
from scenarios.importers.xla_costs import COLLECTIVES, Array, Computation, Instruction, Shape
from scenarios.importers.xla_hlo import MOST_DEPTH, XlaModule, read_hlo
from scenarios.importers.xla_stablehlo import read_stablehlo
from scenarios.ops import attributes as dtypes
from scenarios.ops.op_costs import UNKNOWN_BYTES, without_formula
from sim.base.arrays import at_most
from sim.base.errors import InputError, in_file
from sim.base.files import StrPath, read_text
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph, output_name

_MAX_BYTES: Final = 2**28
_MAX_INSTRUCTIONS: Final = 500_000
"""Maximum number of instructions of a program after inlining calls and loops."""

_COMMENTS: Final = r"(?:\s|(?://|#)[^\n]*\n)*"
_HLO: Final = re.compile(_COMMENTS + "HloModule ")
_STABLEHLO: Final = re.compile(_COMMENTS + r"(?:module\b[^\n]*\{|func\.func )")


def recognises(name: str, head: bytes) -> bool:
    """Whether `head` begins an HLO module, or an MLIR module with operations of StableHLO."""
    text = head.decode(errors="replace")
    dialect = any(word in text for word in ("stablehlo.", "mhlo.", "func.func"))
    return bool(_HLO.match(text) or (dialect and _STABLEHLO.match(text)))


def load(path: StrPath, *, unknown: Literal["error", "bytes"] = "error") -> Graph:
    """Return the graph of a program.

    Parameters
    ----------
    path : path
    unknown : {"error", "bytes"}
        What to do about instructions without a cost formula, such as library calls: refuse them, naming
        all, or count their bytes and no flop, with a warning that names them.

    Returns
    -------
    Graph
        For one device, not pinned; for several, on ``gpu0``, ``gpu1``, ...

    Raises
    ------
    InputError
        The text is damaged, shapes are open, or instructions are unknown or too many.

    Warns
    -----
    UserWarning
        A loop with an unknown trip count runs once; of a conditional the branch with most flop runs; the text
        is not compiled, so that single ops stand for what XLA would fuse; or it is not partitioned.
    """
    text = read_text(path, most=_MAX_BYTES)
    with in_file(path):
        module = (read_hlo if _HLO.match(text) else read_stablehlo)(text)
        if module.name == "module":
            module.name = stem(path, ".txt", ".hlo", ".mlir")
        return _Program(module, unknown).graph(path)


# ----------------------------------------------------------------------------------------------------------
# Tensors while a program is traced: their bytes, and constant numbers.
#
#     scan    i = 0, x  ──►  i < 10 ?  i + 1, body(x)  ──►  i < 10 ?  ...       so the body runs ten times
#
# Loop counters are constants, and so is anything computed from constants alone; no op computes it.


@dataclass(frozen=True)
class Traced:
    """A tensor while the program is traced.

    Attributes
    ----------
    array : Array
    ref : str or None
        How an op refers to it; None: a constant, which is part of the kernel that reads it.
    nbytes : int
        Bytes in memory: for a broadcast, those of what it repeats.
    outer : bool
        Whether it exists before the program begins.
    number : int, float or None
        Value of a constant, if known.
    literal : bool
        Whether XLA uses the number when it converts the text to HLO.
    """

    array: Array
    ref: str | None = None
    nbytes: int = 0
    outer: bool = False
    number: int | float | None = None
    literal: bool = False

    def as_shape(self, array: Array) -> Traced:
        """Return the same bytes under another shape."""
        return replace(self, array=array, nbytes=min(self.nbytes, array.nbytes))


TracedShape = Traced | list[Any]
_Env = ChainMap[str, TracedShape]


def flat(values: TracedShape | Sequence[TracedShape]) -> list[Traced]:
    return [values] if isinstance(values, Traced) else [leaf for value in values for leaf in flat(value)]


def shape_values(shape: Shape, values: Iterator[Traced]) -> TracedShape:
    """Return values, one for each tensor of a shape, in tuples of the same structure."""
    return next(values) if isinstance(shape, Array) else [shape_values(part, values) for part in shape]


_NUMBERS: Final[Mapping[str, Callable[..., Any]]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "maximum": max,
    "minimum": min,
    "and": operator.and_,
    "or": operator.or_,
    "convert": lambda x: x,
    "copy": lambda x: x,
    "not": lambda x: int(not x),
    "select": lambda chosen, yes, no: yes if chosen else no,
}
_COMPARED: Final = {name: getattr(operator, name.lower()) for name in ("LT", "LE", "GT", "GE", "EQ", "NE")}
_MAX_NUMBER: Final = 2**63


def fold_numbers(op: Instruction, operands: Sequence[int | float | None]) -> int | float | None:
    """Return the result of an instruction on known numbers, as far as loop counting needs it."""
    numbers = [number for number in operands if number is not None]
    if len(numbers) < len(operands) or not numbers:
        return None
    if op.opcode == "compare" and len(numbers) == 2:
        return int(_COMPARED[op.attributes.get("direction", "EQ")](*numbers))
    try:
        result = _NUMBERS[op.opcode](*numbers) if op.opcode in _NUMBERS else None
    except TypeError:  # bits of a number that was converted: its value is still a fraction
        return None
    return result if result is not None and abs(result) < _MAX_NUMBER else None


def find_passed_operand(op: Instruction, pair: Sequence[Traced]) -> Traced | None:
    """Return the operand that an instruction passes on: it multiplies by 1, adds 0, or ands with true."""
    neutral = {"multiply": 1, "add": 0, "and": 1}.get(op.opcode)
    if neutral is None or len(pair) != 2 or pair[0].array != pair[1].array:
        return None
    if op.opcode == "and" and pair[0].array.dtype != "bool":  # 1 is not all bits
        return None
    return next((pair[1 - k] for k in (1, 0) if pair[k].literal and pair[k].number == neutral), None)


def same_order(array: Array, axes: Sequence[int]) -> bool:
    """Whether a transposition keeps the order of bytes: it only moves axes of length 1."""
    if sorted(axes) != [*range(len(array.dims))]:
        raise InputError(f"a transposition of {len(array.dims)} axes by {list(axes)[:8]}")
    long = [axis for axis in axes if array.dims[axis] != 1]
    return long == sorted(long)


# ----------------------------------------------------------------------------------------------------------

_PASSING: Final = (
    *("bitcast", "reshape", "dynamic-reshape", "opt-barrier", "domain", "add-dependency"),
    *("async-update", "async-done", "copy-done", "all-reduce-done", "all-gather-done"),
    "collective-permute-done",
)
"""Instructions whose first result is their first operand; a done passes on the result of its start."""

_COMPILED: Final = "lowered.compile().as_text() has"
_SHARDING: Final = re.compile(r"Sharding$|SPMD\w+Shape$|xla\.sdy\.|annotate_|MoveTo\w+$|PinToDevice\w*$|X64")
"""Custom calls that only annotate the placement of a tensor."""


class _Program:
    """Traces a program and writes its ops."""

    def __init__(self, module: XlaModule, unknown: str) -> None:
        self._module, self._unknown = module, unknown
        self._builder = GraphBuilder(module.name)
        self._seen, self._silent, self._depth = 0, False, 0
        self._lengths: dict[int, int] = {}
        self._unclear: dict[str, list[str]] = {}
        self._without: Counter[str] = Counter()
        self._outside: bool | None = None  # whether ops have global shapes, besides the devices' parts
        self._asynchronous = False
        self._groups: dict[tuple[int, ...], str] = {}
        self._collectives = 0

    def graph(self, path: StrPath) -> Graph:
        """Return the graph of all devices."""
        entry = self._module.entry
        parameters = [p for p in entry.instructions.values() if p.opcode == "parameter"]
        arguments: dict[int, TracedShape] = {}
        for p in parameters:
            is_array = isinstance(p.shape, Array)
            names = ((p.label if is_array else f"{p.label}.{k}", a) for k, a in enumerate(p.results))
            tensors = (Traced(array, name, array.nbytes, outer=True) for name, array in names)
            arguments[p.attributes["number"]] = shape_values(p.shape, tensors)
        count = max(arguments, default=-1) + 1
        if count != len(arguments):
            raise InputError(
                f"{entry.name} has {len(arguments)} parameters, and one with the number {count - 1}"
            )
        self._run(entry, [arguments[n] for n in range(count)], "")
        self._warn_of_assumptions(path)
        graph = self._builder.build()
        if self._asynchronous:
            streamed = {op: {"stream": 0, **graph.attributes.get(op, {})} for op in range(len(graph))}
            graph = replace(graph, attributes=streamed)
        n = max([self._module.n_devices, *(max(group) + 1 for group in self._groups)])
        return self._copy_to_devices(graph, n) if self._collectives and n > 1 else graph

    def _warn_of_assumptions(self, path: StrPath) -> None:
        """Warn of what was assumed."""
        without_formula(self._without, self._unknown, UNKNOWN_BYTES)
        notes = []
        for note, (first, *others) in self._unclear.items():
            notes.append(note.replace("WHICH", first + (f" (and {len(others)} more)" if others else "")))
        if self._module.for_cpu:
            notes.append("was compiled for a CPU, whose fusions and types of numbers are not those of a GPU")
        if not self._module.compiled and len(self._builder) > 1:
            note = f"is not compiled: its {len(self._builder)} ops are kernels of their own"
            notes.append(f"{note}, of which XLA makes fewer; {_COMPILED} those, and compile: [fusion] some")
        if self._module.n_devices > 1 and (not self._collectives or self._outside):
            n = self._module.n_devices
            notes.append(
                f"is for {n} devices and not divided among them, so one does all; {_COMPILED} each part"
            )
        for line in notes:
            warnings.warn(f"{path}: {line}", stacklevel=4)

    # -- tracing --------------------------------------------------------------------------------

    def _run(
        self,
        computation: Computation,
        arguments: Sequence[TracedShape],
        path: str,
        outer: _Env | None = None,
        stream: int | None = None,
    ) -> TracedShape:
        """Write the ops of a computation and return its result."""
        self._depth += 1
        length = self._seen + self._length(computation, self._depth)
        at_most(_MAX_INSTRUCTIONS, length, "instructions, with loops and calls written out,")
        env: _Env = ChainMap({}, *(outer.maps if outer is not None else ()))

        def value(name: str, index: int | None) -> TracedShape:
            if name not in env:
                raise InputError(f"{computation.name} reads {name!r}, which no instruction before it makes")
            traced = env[name]
            return traced if index is None or isinstance(traced, Traced) else traced[index]

        for op in computation.instructions.values():
            self._seen += 1
            try:
                if op.opcode == "parameter":
                    argument = arguments[op.attributes["number"]]
                    is_array = isinstance(argument, Traced) and isinstance(op.shape, Array)
                    env[op.name] = argument.as_shape(op.shape) if is_array else argument
                else:
                    operands = [value(*operand) for operand in op.operands]
                    env[op.name] = self._step(op, operands, path, env, stream)
            except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
                problem = f"{path}{op.label} ({op.opcode}): what it reads does not fit"
                raise InputError(f"{problem} its result or its attributes") from None
        self._depth -= 1
        return value(*computation.root)

    def _length(self, computation: Computation, depth: int) -> int:
        """Return the number of instructions after inlining calls, counting loops once."""
        if depth > MOST_DEPTH:
            raise InputError(
                f"{computation.name}: more than {MOST_DEPTH} calls in one another, or it calls itself"
            )
        if id(computation) not in self._lengths:
            self._lengths[id(computation)] = sum(
                1 + sum(self._length(callee, depth + 1) for callee in op.called)
                for op in computation.instructions.values()
            )
        return self._lengths[id(computation)]

    def _step(
        self, op: Instruction, operands: list[TracedShape], path: str, env: _Env, stream: int | None
    ) -> TracedShape:
        """Trace an instruction and return its result."""
        opcode, called = op.opcode, op.called
        where = f"{path}{op.label}"
        target = str(op.attributes.get("target", ""))
        if opcode == "tuple":
            return operands
        if opcode == "get-tuple-element":
            index = op.attributes.get("index")
            return operands[0] if index is None or isinstance(operands[0], Traced) else operands[0][index]
        if opcode in _PASSING or (opcode == "custom-call" and _SHARDING.search(target)):
            if isinstance(operands[0], Traced) and isinstance(op.shape, Array):
                return operands[0].as_shape(op.shape)
            return operands[0] if len(operands) == 1 else operands
        if opcode in ("call", "manual", "async-start"):
            if opcode == "manual":
                self._outside = bool(len(self._builder))
            is_async = opcode == "async-start" and not op.attributes.get("synchronous")
            self._asynchronous |= is_async
            outer = env if opcode == "manual" else None
            prefix = path if opcode == "manual" else f"{where}/"
            return self._run(called[0], operands, prefix, outer, 1 if is_async else stream)
        if opcode == "while":
            return self._loop(op, operands, where, env)
        if opcode == "conditional":
            return self._branch(op, operands, where, env)
        if opcode in ("constant", "iota", "partition-id", "replica-id", "after-all", "create-token"):
            return self._constant(op, where)
        read = flat(operands)
        if not self._module.compiled:
            if opcode == "broadcast" and len(read) == 1 and isinstance(op.shape, Array):
                return replace(read[0], array=op.shape)
            is_transpose = opcode == "transpose" and len(read) == 1
            if is_transpose and same_order(read[0].array, op.attributes["dimensions"]):
                return read[0].as_shape(op.shape)  # type: ignore[arg-type]
            if isinstance(op.shape, Array) and op.shape.elements == 1 and all(v.ref is None for v in read):
                return Traced(op.shape, number=fold_numbers(op, [v.number for v in read]))
            if (passed := find_passed_operand(op, read)) is not None:
                return passed
        return self._op(op, read, where, stream)

    def _constant(self, op: Instruction, where: str) -> TracedShape:
        """Return a constant; an array of several numbers is in memory, like a parameter."""
        if op.opcode == "iota" and self._module.compiled:
            return self._op(op, [], where, None)
        several = op.opcode == "constant" and not op.attributes.get("splat")
        number, literal = op.attributes.get("value"), self._module.simplified
        traced = (
            Traced(array, where, array.nbytes, outer=True)
            if several and array.elements > 1
            else Traced(array, number=number, literal=literal)
            for array in op.results
        )
        return shape_values(op.shape, traced)

    def _loop(self, op: Instruction, operands: list[TracedShape], where: str, env: _Env) -> TracedShape:
        """Trace all iterations of a loop."""
        condition, body = op.called
        state, trips, n = operands, op.attributes.get("trips"), 0
        while True:
            goes_on = n < trips if trips is not None else self._is_true(condition, state, env)
            if goes_on is None and not n:
                self._assume("nobody knows how often WHICH runs, which is counted once", where)
                self._run(condition, state, f"{where}/condition/", env)
            elif not goes_on:
                if goes_on is None:
                    self._assume(f"nobody knows how often WHICH runs, which is counted {n} times", where)
                break
            ended = self._run(body, state, f"{where}/{n}/", env)
            state = [ended] if len(operands) == 1 or isinstance(ended, Traced) else ended
            if len(state) != len(operands):
                raise ValueError("a body whose results are not its arguments")
            n += 1
            if goes_on is None:
                break
        return state[0] if len(operands) == 1 else state

    def _is_true(self, condition: Computation, state: Sequence[TracedShape], env: _Env) -> bool | None:
        """Return whether a condition is true, or None if its numbers are unknown."""
        silent, self._silent = self._silent, True
        compiled, self._module.compiled = self._module.compiled, False  # so that constants are traced
        result = self._run(condition, state, "", env)
        self._silent, self._module.compiled = silent, compiled
        return None if not isinstance(result, Traced) or result.number is None else bool(result.number)

    def _branch(self, op: Instruction, operands: list[TracedShape], where: str, env: _Env) -> TracedShape:
        """Trace the branch that is taken, or, if unknown, the one with most flop."""
        chosen = flat(operands[0])[0]
        n = None if chosen.number is None else int(chosen.number)
        if n is not None and chosen.array.dtype == "bool":
            n = int(not n)  # the first branch is that of true
        if n is None or not 0 <= n < len(op.called):
            work = [costs.flop_of(callee) for callee in op.called]
            n = work.index(max(work))
            self._assume("of WHICH the branch with most flop runs", where)
        return self._run(op.called[n], operands[n + 1 : n + 2], f"{where}/{n}/", env)

    def _assume(self, message: str, where: str) -> None:
        self._unclear.setdefault(message, []).append(where)

    # -- writing --------------------------------------------------------------------------------

    def _op(self, op: Instruction, operands: list[Traced], where: str, stream: int | None) -> TracedShape:
        """Write the op of an instruction."""
        arrays = [value.array for value in operands]
        heaviest, shapes = self._heaviest(op, arrays)
        kind = costs.kind_of(heaviest, shapes)
        if kind is None and op.opcode == "fusion":
            kind = "fusion"
        if kind is None:
            self._without[str(op.attributes.get("target") or op.opcode)] += 1
            kind = op.opcode.replace("-", "_")
        shape = _shape_of(op)
        results = [*costs.leaves(shape)]
        if self._silent:
            return shape_values(shape, map(Traced, results))
        read, written, in_place = costs.bytes_moved(replace(op, shape=shape), arrays)
        refs: dict[str, int] = {}
        for value, nbytes in zip(operands, read, strict=True):
            if value.ref is None:
                continue
            if value.outer and value.ref not in self._builder:
                self._builder.parameter(value.ref, value.nbytes)
            refs[value.ref] = max(refs.get(value.ref, 0), min(nbytes, value.nbytes))
        attributes = costs.sizes_of(heaviest, shapes)
        if op.opcode == "fusion":
            attributes["fused"] = self._fused_kinds(op)
        if in_place is not None and (ref := operands[in_place].ref) is not None:
            attributes["view_of"] = [*refs].index(ref)
        if name := op.attributes.get("op_name"):
            module, _, attributes["operator"] = name.rpartition("/")
            attributes |= {"module": module} if module else {}
        opcode = op.opcode.removesuffix("-start")
        work = 0
        if opcode in COLLECTIVES:
            attributes |= self._collective(op, where)
            if op.opcode != opcode and not op.attributes.get("synchronous"):
                stream, self._asynchronous = 1, True
        else:
            work = costs.work_of(op, arrays)
        if stream is not None:
            attributes["stream"] = stream
        self._builder.op(
            where,
            kind=kind,
            inputs=[*refs],
            outputs=[array.nbytes for array in results] or 0,
            flops=work,
            bytes_read=sum(refs.values()),
            bytes_written=sum(written),
            dtype=dtypes.math_dtype([x.dtype for x in (*(shapes or arrays), *heaviest.results, *results)]),
            attributes=attributes,
        )
        outputs = (Traced(array, output_name(where, k), array.nbytes) for k, array in enumerate(results))
        return shape_values(shape, outputs)

    def _heaviest(self, op: Instruction, arrays: list[Array]) -> tuple[Instruction, list[Array]]:
        """Return the instruction that gives an op its kind (of a fusion the heaviest), and its operands."""
        if op.opcode != "fusion":
            return op, arrays
        body = op.called[0]
        best, largest = None, (False, -1)
        for candidate in body.instructions.values():
            if candidate.opcode not in _NO_WORK:
                weight = bool(costs.product_of(candidate)), costs.work_of(candidate, body.shapes(candidate))
                if weight >= largest:
                    best, largest = candidate, weight
        if best is None:
            end = body.end()
            return (op, arrays) if end is None else (end, body.shapes(end))
        return self._heaviest(best, body.shapes(best))

    def _fused_kinds(self, op: Instruction) -> list[str]:
        body = op.called[0]
        kinds = [
            costs.kind_of(part, body.shapes(part))
            for part in body.instructions.values()
            if part.opcode not in _NO_WORK
        ]
        return [kind for kind in dict.fromkeys(kinds) if kind]

    # -- devices --------------------------------------------------------------------------------

    def _collective(self, op: Instruction, where: str) -> dict[str, Any]:
        """Return the participants of a collective, for `_copy_to_devices`."""
        self._collectives += 1
        groups = op.attributes.get("replica_groups") or [[*range(self._module.n_devices)]]
        pairs = op.attributes.get("source_target_pairs")
        if pairs is not None:
            groups = _connect(pairs)
        members = [tuple(sorted(group)) for group in groups]
        if len({rank for group in members for rank in group}) < sum(map(len, members)):
            raise InputError(f"{where}: a rank is in two of its replica groups")
        if any(rank >= MOST_RANKS for group in members for rank in group):
            raise InputError(f"{where}: a rank from {MOST_RANKS:,} on")
        for group in members:
            self._groups.setdefault(group, f"group{len(self._groups)}")
        attributes: dict[str, Any] = {"groups_of_ranks": members}
        if pairs is not None:
            attributes |= {
                "pairs": dict(pairs),
                "nbytes": sum(array.nbytes for array in costs.leaves(_shape_of(op))),
            }
        return attributes

    def _copy_to_devices(self, graph: Graph, n: int) -> Graph:
        """Return the graph of all devices, each in its groups."""
        names = gpus(n)

        def on(attributes: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
            result = dict(attributes)
            groups = result.pop("groups_of_ranks", None)
            if groups is None:
                return result
            members = next((group for group in groups if rank in group), (rank,))
            result["communicator"] = self._groups.get(members, f"rank{rank}")
            if (pairs := result.pop("pairs", None)) is not None:
                nbytes = result.pop("nbytes")
                result["sends"] = {names[pairs[rank]]: nbytes} if rank in pairs else {}
            return result

        builder = GraphBuilder(graph.name)
        add_ranks(builder, graph, names, on)
        return builder.build()


_NO_WORK: Final = (
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "reshape", "broadcast", "iota"),
)


def _shape_of(op: Instruction) -> Shape:
    """Return the shape of a result; the shape of a start also includes its operands."""
    shape = op.shape
    if not isinstance(shape, Array) and len(shape) > 1:
        if op.opcode in ("all-gather-start", "collective-permute-start"):
            return shape[1]  # type: ignore[no-any-return]
        if op.opcode == "copy-start":
            return shape[0]  # type: ignore[no-any-return]
    return shape


def _connect(pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the ranks that a permutation connects."""
    group: dict[int, list[int]] = {}
    for source, target in pairs:
        left, right = group.setdefault(source, [source]), group.setdefault(target, [target])
        if left is not right:
            left += right
            for rank in right:
                group[rank] = left
    return [*{id(ranks): ranks for ranks in group.values()}.values()]
