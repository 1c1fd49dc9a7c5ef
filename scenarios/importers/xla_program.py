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

_MOST_BYTES: Final = 2**28
_MOST_INSTRUCTIONS: Final = 500_000
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
    text = read_text(path, most=_MOST_BYTES)
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
_Known = ChainMap[str, TracedShape]


def flat(values: TracedShape | Sequence[TracedShape]) -> list[Traced]:
    return [values] if isinstance(values, Traced) else [one for each in values for one in flat(each)]


def shape_values(shape: Shape, values: Iterator[Traced]) -> TracedShape:
    """Return values, one for each tensor of a shape, in tuples of the same structure."""
    return next(values) if isinstance(shape, Array) else [shape_values(one, values) for one in shape]


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
_LARGEST: Final = 2**63


def number_made(one: Instruction, given: Sequence[int | float | None]) -> int | float | None:
    """Return the result of an instruction on known numbers, as far as loop counting needs it."""
    known = [number for number in given if number is not None]
    if len(known) < len(given) or not known:
        return None
    if one.opcode == "compare" and len(known) == 2:
        return int(_COMPARED[one.attributes.get("direction", "EQ")](*known))
    try:
        found = _NUMBERS[one.opcode](*known) if one.opcode in _NUMBERS else None
    except TypeError:  # bits of a number that was converted: its value is still a fraction
        return None
    return found if found is not None and abs(found) < _LARGEST else None


def passed_operand(one: Instruction, given: Sequence[Traced]) -> Traced | None:
    """Return the operand that an instruction passes on: it multiplies by 1, adds 0, or ands with true."""
    neutral = {"multiply": 1, "add": 0, "and": 1}.get(one.opcode)
    if neutral is None or len(given) != 2 or given[0].array != given[1].array:
        return None
    if one.opcode == "and" and given[0].array.dtype != "bool":  # 1 is not all bits
        return None
    return next((given[1 - k] for k in (1, 0) if given[k].literal and given[k].number == neutral), None)


def same_order(array: Array, axes: Sequence[int]) -> bool:
    """Whether a transposition keeps the order of bytes: it only moves axes of length 1."""
    if sorted(axes) != [*range(len(array.dims))]:
        raise InputError(f"a transposition of {len(array.dims)} axes by {list(axes)[:8]}")
    long = [axis for axis in axes if array.dims[axis] != 1]
    return long == sorted(long)


# ----------------------------------------------------------------------------------------------------------

_SAME: Final = (
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
        parameters = [one for one in entry.instructions.values() if one.opcode == "parameter"]
        arguments: dict[int, TracedShape] = {}
        for one in parameters:
            alone = isinstance(one.shape, Array)
            names = ((one.label if alone else f"{one.label}.{k}", a) for k, a in enumerate(one.results))
            given = (Traced(array, name, array.nbytes, outer=True) for name, array in names)
            arguments[one.attributes["number"]] = shape_values(one.shape, given)
        count = max(arguments, default=-1) + 1
        if count != len(arguments):
            raise InputError(
                f"{entry.name} has {len(arguments)} parameters, and one with the number {count - 1}"
            )
        self._run(entry, [arguments[n] for n in range(count)], "")
        self._tell(path)
        graph = self._builder.build()
        if self._asynchronous:
            beside = {op: {"stream": 0, **graph.attributes.get(op, {})} for op in range(len(graph))}
            graph = replace(graph, attributes=beside)
        n = max([self._module.n_devices, *(max(group) + 1 for group in self._groups)])
        return self._on_devices(graph, n) if self._collectives and n > 1 else graph

    def _tell(self, path: StrPath) -> None:
        """Warn of what was assumed."""
        without_formula(self._without, self._unknown, UNKNOWN_BYTES)
        told = []
        for what, (first, *others) in self._unclear.items():
            told.append(what.replace("WHICH", first + (f" (and {len(others)} more)" if others else "")))
        if self._module.for_cpu:
            told.append("was compiled for a CPU, whose fusions and types of numbers are not those of a GPU")
        if not self._module.compiled and len(self._builder) > 1:
            what = f"is not compiled: its {len(self._builder)} ops are kernels of their own"
            told.append(f"{what}, of which XLA makes fewer; {_COMPILED} those, and compile: [fusion] some")
        if self._module.n_devices > 1 and (not self._collectives or self._outside):
            n = self._module.n_devices
            told.append(
                f"is for {n} devices and not divided among them, so one does all; {_COMPILED} each part"
            )
        for one in told:
            warnings.warn(f"{path}: {one}", stacklevel=4)

    # -- tracing --------------------------------------------------------------------------------

    def _run(
        self,
        computation: Computation,
        arguments: Sequence[TracedShape],
        path: str,
        outer: _Known | None = None,
        stream: int | None = None,
    ) -> TracedShape:
        """Write the ops of a computation and return its result."""
        self._depth += 1
        length = self._seen + self._length(computation, self._depth)
        at_most(_MOST_INSTRUCTIONS, length, "instructions, with loops and calls written out,")
        known: _Known = ChainMap({}, *(outer.maps if outer is not None else ()))

        def value(name: str, index: int | None) -> TracedShape:
            if name not in known:
                raise InputError(f"{computation.name} reads {name!r}, which no instruction before it makes")
            found = known[name]
            return found if index is None or isinstance(found, Traced) else found[index]

        for one in computation.instructions.values():
            self._seen += 1
            try:
                if one.opcode == "parameter":
                    found = arguments[one.attributes["number"]]
                    alone = isinstance(found, Traced) and isinstance(one.shape, Array)
                    known[one.name] = found.as_shape(one.shape) if alone else found
                else:
                    given = [value(*each) for each in one.operands]
                    known[one.name] = self._step(one, given, path, known, stream)
            except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
                what = f"{path}{one.label} ({one.opcode}): what it reads does not fit"
                raise InputError(f"{what} its result or its attributes") from None
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
                1 + sum(self._length(each, depth + 1) for each in one.called)
                for one in computation.instructions.values()
            )
        return self._lengths[id(computation)]

    def _step(
        self, one: Instruction, given: list[TracedShape], path: str, known: _Known, stream: int | None
    ) -> TracedShape:
        """Trace an instruction and return its result."""
        opcode, called = one.opcode, one.called
        where = f"{path}{one.label}"
        target = str(one.attributes.get("target", ""))
        if opcode == "tuple":
            return given
        if opcode == "get-tuple-element":
            index = one.attributes.get("index")
            return given[0] if index is None or isinstance(given[0], Traced) else given[0][index]
        if opcode in _SAME or (opcode == "custom-call" and _SHARDING.search(target)):
            if isinstance(given[0], Traced) and isinstance(one.shape, Array):
                return given[0].as_shape(one.shape)
            return given[0] if len(given) == 1 else given
        if opcode in ("call", "manual", "async-start"):
            if opcode == "manual":
                self._outside = bool(len(self._builder))
            apart = opcode == "async-start" and not one.attributes.get("synchronous")
            self._asynchronous |= apart
            outer = known if opcode == "manual" else None
            inside = path if opcode == "manual" else f"{where}/"
            return self._run(called[0], given, inside, outer, 1 if apart else stream)
        if opcode == "while":
            return self._loop(one, given, where, known)
        if opcode == "conditional":
            return self._branch(one, given, where, known)
        if opcode in ("constant", "iota", "partition-id", "replica-id", "after-all", "create-token"):
            return self._constant(one, where)
        read = flat(given)
        if not self._module.compiled:
            if opcode == "broadcast" and len(read) == 1 and isinstance(one.shape, Array):
                return replace(read[0], array=one.shape)
            alone = opcode == "transpose" and len(read) == 1
            if alone and same_order(read[0].array, one.attributes["dimensions"]):
                return read[0].as_shape(one.shape)  # type: ignore[arg-type]
            if isinstance(one.shape, Array) and one.shape.elements == 1 and all(v.ref is None for v in read):
                return Traced(one.shape, number=number_made(one, [v.number for v in read]))
            if (kept := passed_operand(one, read)) is not None:
                return kept
        return self._op(one, read, where, stream)

    def _constant(self, one: Instruction, where: str) -> TracedShape:
        """Return a constant; an array of several numbers is in memory, like a parameter."""
        if one.opcode == "iota" and self._module.compiled:
            return self._op(one, [], where, None)
        several = one.opcode == "constant" and not one.attributes.get("splat")
        number, literal = one.attributes.get("value"), self._module.simplified
        made = (
            Traced(array, where, array.nbytes, outer=True)
            if several and array.elements > 1
            else Traced(array, number=number, literal=literal)
            for array in one.results
        )
        return shape_values(one.shape, made)

    def _loop(self, one: Instruction, given: list[TracedShape], where: str, known: _Known) -> TracedShape:
        """Trace all iterations of a loop."""
        condition, body = one.called
        state, trips, n = given, one.attributes.get("trips"), 0
        while True:
            goes_on = n < trips if trips is not None else self._holds(condition, state, known)
            if goes_on is None and not n:
                self._assume("nobody knows how often WHICH runs, which is counted once", where)
                self._run(condition, state, f"{where}/condition/", known)
            elif not goes_on:
                if goes_on is None:
                    self._assume(f"nobody knows how often WHICH runs, which is counted {n} times", where)
                break
            ended = self._run(body, state, f"{where}/{n}/", known)
            state = [ended] if len(given) == 1 or isinstance(ended, Traced) else ended
            if len(state) != len(given):
                raise ValueError("a body whose results are not its arguments")
            n += 1
            if goes_on is None:
                break
        return state[0] if len(given) == 1 else state

    def _holds(self, condition: Computation, state: Sequence[TracedShape], known: _Known) -> bool | None:
        """Return whether a condition is true, or None if its numbers are unknown."""
        silent, self._silent = self._silent, True
        compiled, self._module.compiled = self._module.compiled, False  # so that constants are traced
        found = self._run(condition, state, "", known)
        self._silent, self._module.compiled = silent, compiled
        return None if not isinstance(found, Traced) or found.number is None else bool(found.number)

    def _branch(self, one: Instruction, given: list[TracedShape], where: str, known: _Known) -> TracedShape:
        """Trace the branch that is taken, or, if unknown, the one with most flop."""
        chosen = flat(given[0])[0]
        n = None if chosen.number is None else int(chosen.number)
        if n is not None and chosen.array.dtype == "bool":
            n = int(not n)  # the first branch is that of true
        if n is None or not 0 <= n < len(one.called):
            work = [costs.flop_of(each) for each in one.called]
            n = work.index(max(work))
            self._assume("of WHICH the branch with most flop runs", where)
        return self._run(one.called[n], given[n + 1 : n + 2], f"{where}/{n}/", known)

    def _assume(self, what: str, where: str) -> None:
        self._unclear.setdefault(what, []).append(where)

    # -- writing --------------------------------------------------------------------------------

    def _op(self, one: Instruction, given: list[Traced], where: str, stream: int | None) -> TracedShape:
        """Write the op of an instruction."""
        arrays = [value.array for value in given]
        inside, shapes = self._heaviest(one, arrays)
        kind = costs.kind_of(inside, shapes)
        if kind is None and one.opcode == "fusion":
            kind = "fusion"
        if kind is None:
            self._without[str(one.attributes.get("target") or one.opcode)] += 1
            kind = one.opcode.replace("-", "_")
        made = _shape_of(one)
        results = [*costs.leaves(made)]
        if self._silent:
            return shape_values(made, map(Traced, results))
        read, written, in_place = costs.bytes_moved(replace(one, shape=made), arrays)
        refs: dict[str, int] = {}
        for value, nbytes in zip(given, read, strict=True):
            if value.ref is None:
                continue
            if value.outer and value.ref not in self._builder:
                self._builder.parameter(value.ref, value.nbytes)
            refs[value.ref] = max(refs.get(value.ref, 0), min(nbytes, value.nbytes))
        attributes = costs.sizes_of(inside, shapes)
        if one.opcode == "fusion":
            attributes["fused"] = self._fuse(one)
        if in_place is not None and (ref := given[in_place].ref) is not None:
            attributes["view_of"] = [*refs].index(ref)
        if name := one.attributes.get("op_name"):
            module, _, attributes["operator"] = name.rpartition("/")
            attributes |= {"module": module} if module else {}
        opcode = one.opcode.removesuffix("-start")
        work = 0
        if opcode in COLLECTIVES:
            attributes |= self._collective(one, where)
            if one.opcode != opcode and not one.attributes.get("synchronous"):
                stream, self._asynchronous = 1, True
        else:
            work = costs.work_of(one, arrays)
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
            dtype=dtypes.math_dtype([x.dtype for x in (*(shapes or arrays), *inside.results, *results)]),
            attributes=attributes,
        )
        outputs = (Traced(array, output_name(where, k), array.nbytes) for k, array in enumerate(results))
        return shape_values(made, outputs)

    def _heaviest(self, one: Instruction, arrays: list[Array]) -> tuple[Instruction, list[Array]]:
        """Return the instruction that gives an op its kind (of a fusion the heaviest), and its operands."""
        if one.opcode != "fusion":
            return one, arrays
        inside = one.called[0]
        best, most = None, (False, -1)
        for each in inside.instructions.values():
            if each.opcode not in _NOTHING:
                weight = bool(costs.product_of(each)), costs.work_of(each, inside.shapes(each))
                if weight >= most:
                    best, most = each, weight
        if best is None:
            end = inside.end()
            return (one, arrays) if end is None else (end, inside.shapes(end))
        return self._heaviest(best, inside.shapes(best))

    def _fuse(self, one: Instruction) -> list[str]:
        inside = one.called[0]
        kinds = [
            costs.kind_of(each, inside.shapes(each))
            for each in inside.instructions.values()
            if each.opcode not in _NOTHING
        ]
        return [kind for kind in dict.fromkeys(kinds) if kind]

    # -- devices --------------------------------------------------------------------------------

    def _collective(self, one: Instruction, where: str) -> dict[str, Any]:
        """Return the participants of a collective, for `_on_devices`."""
        self._collectives += 1
        groups = one.attributes.get("replica_groups") or [[*range(self._module.n_devices)]]
        pairs = one.attributes.get("source_target_pairs")
        if pairs is not None:
            groups = _connect(pairs)
        members = [tuple(sorted(group)) for group in groups]
        if len({rank for group in members for rank in group}) < sum(map(len, members)):
            raise InputError(f"{where}: a rank is in two of its replica groups")
        if any(rank >= MOST_RANKS for group in members for rank in group):
            raise InputError(f"{where}: a rank from {MOST_RANKS:,} on")
        for group in members:
            self._groups.setdefault(group, f"group{len(self._groups)}")
        found: dict[str, Any] = {"groups_of_ranks": members}
        if pairs is not None:
            found |= {
                "pairs": dict(pairs),
                "nbytes": sum(array.nbytes for array in costs.leaves(_shape_of(one))),
            }
        return found

    def _on_devices(self, graph: Graph, n: int) -> Graph:
        """Return the graph of all devices, each in its groups."""
        names = gpus(n)

        def on(attributes: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
            found = dict(attributes)
            groups = found.pop("groups_of_ranks", None)
            if groups is None:
                return found
            own = next((group for group in groups if rank in group), (rank,))
            found["communicator"] = self._groups.get(own, f"rank{rank}")
            if (pairs := found.pop("pairs", None)) is not None:
                nbytes = found.pop("nbytes")
                found["sends"] = {names[pairs[rank]]: nbytes} if rank in pairs else {}
            return found

        out = GraphBuilder(graph.name)
        add_ranks(out, graph, names, on)
        return out.build()


_NOTHING: Final = (
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "reshape", "broadcast", "iota"),
)


def _shape_of(one: Instruction) -> Shape:
    """Return the shape of a result; the shape of a start also includes its operands."""
    shape = one.shape
    if not isinstance(shape, Array) and len(shape) > 1:
        if one.opcode in ("all-gather-start", "collective-permute-start"):
            return shape[1]  # type: ignore[no-any-return]
        if one.opcode == "copy-start":
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
