"""Inlining: replace ops that call functions by the ops of these functions.

::

    f: call(body=g)  inputs [x]         g(a): ops h(a) → k(h), results [k]

    x ─► f ─► y              becomes    x ─► f/h ─► f/k ─► y

A body's names are those of its op and itself, joined by ``/``. Conditions and loops become the ops of
`scenarios.ops.control_flow`. The first ops of a body follow whatever its op follows; an op without
inputs in a branch or a loop follows the switch. With ``own_frame: true`` a call runs in a frame of its own,
behind an enter for each input and before an exit for each result. An op of a loop's body that reads only
invariants follows the switch too: otherwise it would run, and begin another iteration, after the last one.
The device of an op is that of the ops that replace it, unless they name one.

TensorFlow 2 inlines functions in the same way (tensorflow/core/common_runtime/lower_if_op.cc,
lower_while_op.cc, inline_function_utils.cc).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple

from sim.base.arrays import MOST_BUILT, at_most
from sim.base.errors import GraphError, UnknownNameError
from sim.graph.builder import GraphBuilder
from sim.graph.graph import output_name, split_output

# ----------------------------------------------------------------------------------------------------------
# Functions: some ops stand for other ops, which replace them when the graph is built.
#
# A function has inputs, ops and results. Three kinds of op name functions in their attributes:
#
#  call    body                                its results are those of the body
#  if      then, else                          the first input decides (its producer carries an ``outcome``);
#                                              the other inputs are those of both functions
#  while   body, cond (optional), trips,       the inputs are the first values of the loop's variables, which
#          parallel_iterations                 are inputs and results of the body; cond's result decides
#
# These are the functional If and While of ONNX and TensorFlow 2. `scenarios.ops.inlining` inlines them.

FUNCTIONAL_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "call": ("body",),
    "if": ("then", "else"),
    "while": ("body",),
}
"""Kinds of functional op, and the attributes that name their functions."""

Record = Mapping[str, Any]
"""Arguments of `GraphBuilder.op`."""


class Function(NamedTuple):
    """A function: ops with inputs and results.

    Attributes
    ----------
    name : str
    inputs : tuple of str
        Names by which its ops read its arguments.
    ops : tuple of mapping
        Arguments of `GraphBuilder.op`, each with its ``name``.
    results : tuple of str
        Outputs of its ops, or inputs that are passed through unchanged.
    """

    name: str
    inputs: tuple[str, ...]
    ops: tuple[Record, ...]
    results: tuple[str, ...]


def is_functional(record: Record) -> bool:
    """Whether an op is functional: its kind says so, and its attributes name a function."""
    names = FUNCTIONAL_KINDS.get(record.get("kind", ""))
    return names is not None and any(name in (record.get("attributes") or {}) for name in names)


def check_size(records: Sequence[Record], functions: Mapping[str, Function]) -> None:
    """Raise before inlining if the result would have too many ops or be nested too deeply."""
    measured: dict[str, tuple[int, int]] = {}

    def measure(ops: Sequence[Record], callers: tuple[str, ...]) -> tuple[int, int]:
        """Return the number of ops after inlining, and the depth of nesting."""
        if len(callers) > _MAX_DEPTH:
            raise GraphError(
                f"functions call one another more than {_MAX_DEPTH} levels deep ({callers[0]!r} ...)"
            )
        count, depth = len(ops), 0
        for op in filter(is_functional, ops):
            called = {str(op["attributes"].get(key)) for key in ("body", "then", "else", "cond")}
            for name in called & functions.keys() - set(callers):  # recursion is refused later
                if name not in measured:
                    measured[name] = measure(functions[name].ops, (*callers, name))
                count, depth = count + measured[name][0], max(depth, 1 + measured[name][1])
        if depth > _MAX_DEPTH:
            raise GraphError(f"functions call one another more than {_MAX_DEPTH} levels deep")
        return count, depth

    at_most(MOST_BUILT, measure(records, ())[0], "ops, with those of functions,")


_MAX_DEPTH: Final = 64
"""Deepest nesting of functions."""


# ----------------------------------------------------------------------------------------------------------


def add_ops(builder: GraphBuilder, records: Sequence[Record], functions: Mapping[str, Function]) -> None:
    """Add ops to a builder, replacing functional ones by the ops of their functions.

    Parameters
    ----------
    builder : GraphBuilder
    records : sequence of mapping
        Arguments of `GraphBuilder.op`, each with its ``name``.
    functions : mapping of str to Function

    Raises
    ------
    GraphError
        A function is unknown or calls itself, or the number of inputs or results is wrong.

    Examples
    --------
    >>> g = Function("g", ("a",), ({"name": "h", "inputs": ["a"]}, {"name": "k", "inputs": ["h"]}), ("k",))
    >>> b = GraphBuilder()
    >>> ops = [{"name": "x"}, {"name": "f", "kind": "call", "inputs": ["x"], "attributes": {"body": "g"}},
    ...        {"name": "y", "inputs": ["f"]}]
    >>> add_ops(b, ops, {"g": g})
    >>> b.build().op_names
    ('x', 'f/h', 'f/k', 'y')
    """
    if not any(map(is_functional, records)):
        for record in records:
            builder.op(**record)
        return
    check_size(records, functions)
    _Scope(builder, functions, records).add()


@dataclass
class _Scope:
    """Ops of a graph, or of one inlined use of a function.

    Attributes
    ----------
    prefix : str
        Prefix of the names of its ops.
    arguments : mapping
        Input of the function → name of its argument.
    begins : sequence
        Edges for ops that read no other op of the function.
    pivot : callable
        Returns an edge for ops that read nothing, or only `free` tensors; adds its op on demand.
    free : set of str
        Tensors that exist in all iterations of the loop, also in the one after its last.
    stack : tuple of str
        Functions being inlined.
    key : str
        The attribute that named the function.
    awaited : bool
        Whether something waits for all its ops.
    """

    builder: GraphBuilder
    functions: Mapping[str, Function]
    ops: Sequence[Record]
    prefix: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    begins: Sequence[Any] = ()
    pivot: Callable[[], Sequence[Any]] = tuple
    free: frozenset[Any] = frozenset()
    stack: tuple[str, ...] = ()
    key: str = ""
    awaited: bool = False

    def __post_init__(self) -> None:
        """Prepare results and last ops of functional ops, which are inlined on demand."""
        self.records = {record["name"]: record for record in self.ops}
        self.followed = {self._split(ref)[0] for op in self.ops for ref in op.get("after") or ()}
        self.done: dict[str, tuple[list[Any], list[str]] | None] = {}

    def add(self) -> None:
        """Add every op; functional ones are inlined when they are first needed."""
        for name, record in self.records.items():
            if is_functional(record):
                self._inline(name)
            else:
                self.builder.op(**{**record, **self._edges(record), "name": self.prefix + name})

    def _edges(self, record: Record) -> dict[str, Any]:
        """Return the inputs and control edges of an op in the graph being built."""
        read, follow = record.get("inputs") or (), record.get("after") or ()
        inputs = [self.value(ref) for ref in read]
        after = [edge for ref in follow for edge in self._control(ref)]
        if not any(self._split(ref)[0] in self.records for ref in (*read, *follow)):
            after += self.begins
        decides = inputs[:1] if is_functional(record) and record["kind"] == "if" else inputs
        if not follow and all(map(self._is_free, decides)):
            after += self.pivot()
        return {"inputs": inputs, "after": after}

    def _is_free(self, value: Any) -> bool:
        return (value if isinstance(value, str) else value[0]) in self.free

    def _entry_edges(self, value: Any, after: Sequence[Any]) -> Sequence[Any]:
        """Return the edges that a value follows into a frame: those of its op, or the pivot if it is free."""
        return after or (self.pivot() if self._is_free(value) else ())

    def _split(self, ref: Any) -> tuple[str, int, int]:
        """Return op (or input), output and distance of a reference."""
        name, distance = (ref, 0) if isinstance(ref, str) else ref
        if name in self.records or name in self.arguments:
            return name, 0, distance
        op, k = split_output(name) or (name, 0)
        return (op, k, distance) if op in self.records else (name, 0, distance)

    def value(self, ref: Any) -> Any:
        """Return the meaning of a reference in the graph being built."""
        name, k, distance = self._split(ref)
        if name in self.arguments:
            return _shift_back(self.arguments[name], distance)
        if name not in self.records:
            if self.prefix:
                op = self.prefix.rstrip("/")
                raise GraphError(
                    f"function {self.stack[-1]!r}, written out for {op!r}: {name!r} is neither an input nor "
                    "an op of the function; hand over what it reads as an input"
                ).about(op, self.key)
            return _shift_back(name, distance)
        if not is_functional(self.records[name]):
            return _shift_back(output_name(self.prefix + name, k), distance)
        results, _ = self._inline(name)
        if k >= len(results):
            op = self.prefix + name
            raise GraphError(f"{op} has {len(results)} result(s), counted from 0, not {k}").about(op)
        return _shift_back(results[k], distance)

    def _control(self, ref: Any) -> list[Any]:
        name, _, distance = self._split(ref)
        if name in self.records and is_functional(self.records[name]):
            return [_shift_back(end, distance) for end in self._inline(name)[1]]
        return [_shift_back(self.prefix + name if name in self.records else name, distance)]

    # -- functional ops --------------------------------------------------------------------------

    def _inline(self, name: str) -> tuple[list[Any], list[str]]:
        """Return results and last ops of a functional op, inlining it the first time."""
        if name not in self.done:
            record = self.records[name]
            if record["attributes"].get("fails"):
                raise self._error(self.prefix + name, " stands for other ops; let one of these fail", "fails")
            self.done[name] = None
            edges = self._edges(record)
            write = {"call": self._call, "if": self._if, "while": self._while}[record["kind"]]
            builder, outer = self.builder, (self.builder.device, self.builder.stream)
            builder.device = record.get("device") or builder.device
            builder.stream = record["attributes"].get("stream", builder.stream)
            self.done[name] = write(record, edges["inputs"], edges["after"])
            builder.device, builder.stream = outer
        written = self.done[name]
        if written is None:  # a cycle; it has no meaning across iterations either
            op = self.prefix + name
            raise self._error(op, " stands for other ops, which cannot wait for its results")
        return written

    def _is_awaited(self, name: str) -> bool:
        """Whether something waits for all ops of a functional op, not just for its results."""
        return self.awaited or name in self.followed

    def _function(self, record: Record, key: str, n_inputs: int) -> Function:
        name: Any = record["attributes"].get(key)
        op = self.prefix + record["name"]
        if not isinstance(name, str):
            raise self._error(op, f" of kind {record['kind']} needs attributes: {{{key}: FUNCTION}}", key)
        if name not in self.functions:
            raise self._error(op, f": {UnknownNameError('function', name, self.functions)}", key)
        if name in self.stack:
            chain = " -> ".join((*self.stack[self.stack.index(name) :], name))
            raise self._error(op, f": function {name!r} calls itself ({chain}), which has no end", key)
        function = self.functions[name]
        if (n := len(function.inputs)) != n_inputs:
            raise self._error(op, f" gives {n_inputs} input(s) to function {name!r}, which has {n}", key)
        return function

    def _error(self, op: str, problem: str, key: str | None = None) -> GraphError:
        """Return an error about an op and its attribute `key`."""
        return GraphError(f"op {op!r}{problem}").about(op, key)

    def _write(
        self, function: Function, prefix: str, arguments: Sequence[Any], key: str, **context: Any
    ) -> tuple[list[Any], list[str]]:
        """Add the ops of a function; return its results and its last ops."""
        values = dict(zip(function.inputs, arguments, strict=True))
        context |= {"stack": (*self.stack, function.name), "key": key}
        scope = _Scope(self.builder, self.functions, function.ops, prefix, values, **context)
        scope.add()
        results = [scope.value(ref) for ref in function.results]
        read = {_op_of(value) for op in function.ops for value in map(scope.value, op.get("inputs") or ())}
        unfollowed = (op["name"] for op in function.ops if op["name"] not in scope.followed)
        ends = (end for name in unfollowed for end in scope._control(name))
        return results, [end for end in ends if end not in read]

    def _needs_pivot(self, function: Function, *callers: str) -> bool:
        """Whether an op of a function, or of one that it calls, has no inputs and so needs the pivot."""
        callers = (*callers, function.name)
        for op in function.ops:
            if not op.get("inputs") and not op.get("after"):
                return True
            called = str(op["attributes"].get("body")) if is_functional(op) and op["kind"] == "call" else ""
            # Recursion is refused later.
            inner = self.functions.get(called) if called not in callers else None
            if inner is not None and self._needs_pivot(inner, *callers):
                return True
        return False

    def _identity(self, name: str, value: Any, after: Sequence[Any] = ()) -> str:
        return self.builder.op(name, kind="identity", inputs=[value], after=after, duration_ns=0)

    def _call(self, record: Record, inputs: list[Any], after: list[Any]) -> tuple[list[Any], list[str]]:
        name = record["name"]
        function = self._function(record, "body", len(inputs))
        prefix = f"{self.prefix}{name}/"
        if not record["attributes"].get("own_frame", False):
            context = {"begins": after, "pivot": self.pivot, "free": self.free}
            context["awaited"] = self._is_awaited(name)
            return self._write(function, prefix, inputs, "body", **context)
        if not inputs or not function.results:
            raise self._error(self.prefix + name, ": a frame of its own needs an input and a result")
        frame: dict[str, Any] = {"kind": "enter", "duration_ns": 0}
        frame["attributes"] = {"frame": self.prefix + name, "parallel_iterations": 1}
        enters = [
            self.builder.op(f"{prefix}{p}/enter", inputs=[x], after=self._entry_edges(x, after), **frame)
            for p, x in zip(function.inputs, inputs, strict=True)
        ]
        results, ends = self._write(function, prefix, enters, "body", pivot=lambda: enters[:1], awaited=True)
        exits = [
            self.builder.op(f"{prefix}exit{k}", kind="exit", inputs=[x], after=ends, duration_ns=0)
            for k, x in enumerate(results)
        ]
        return exits, exits

    def _if(self, record: Record, inputs: list[Any], after: list[Any]) -> tuple[list[Any], list[str]]:
        name = self.prefix + record["name"]
        if not inputs:
            raise self._error(name, " of kind if needs an input that decides")
        values = inputs[1:]
        sides = {key: self._function(record, key, len(values)) for key in ("then", "else")}
        counts = [len(side.results) for side in sides.values()]
        if counts[0] != counts[1] or not counts[0]:
            raise self._error(
                name,
                f": its branches return {counts[0]} and {counts[1]} results; they should return "
                "equally many, and at least one",
            )
        predicate = self._identity(f"{name}/begin", inputs[0], after) if after else inputs[0]

        awaited = self._is_awaited(record["name"])
        last: dict[str, tuple[str, str]] = {}  # branch → its first result, and the op that ends last

        def branch(key: str) -> Any:
            def write(builder: GraphBuilder, names: Mapping[Any, str]) -> list[Any]:
                starts = self._needs_pivot(sides[key])
                pivot = [self._identity(f"{name}/{key}", names[predicate])] if starts else []
                inputs = [names[x] for x in values]
                context = {"pivot": lambda: pivot, "awaited": awaited}
                results, ends = self._write(sides[key], f"{name}/{key}/", inputs, key, **context)
                stray = [end for end in ends if end not in results and awaited]
                end = self._identity(f"{name}/{key}/end", results[0], stray) if stray else results[0]
                last[key] = results[0], end
                return results

            return write

        from scenarios.ops.control_flow import cond

        starts = any(map(self._needs_pivot, sides.values()))
        switched = list(dict.fromkeys([predicate, *values])) if starts else values
        merges = cond(self.builder, name, predicate, switched, branch("then"), branch("else"))
        if all(result == end for result, end in last.values()):
            return merges, merges
        # What follows also waits for the ops that nothing reads.
        ends = [last[key][1] for key in ("else", "then")]
        return merges, [*merges, self.builder.op(f"{name}/end", kind="merge", inputs=ends, duration_ns=0)]

    def _while(self, record: Record, inputs: list[Any], after: list[Any]) -> tuple[list[Any], list[str]]:
        name, attributes = self.prefix + record["name"], record["attributes"]
        body = self._function(record, "body", len(inputs))
        if len(body.results) != len(inputs):
            raise self._error(
                name,
                f": inputs of the body are {len(inputs)}, and its results {len(body.results)}; "
                "the results are the next values of the inputs",
                "body",
            )
        test = self._function(record, "cond", len(inputs)) if "cond" in attributes else None
        if test is not None and len(test.results) != 1:
            raise self._error(name, f": its condition returns {len(test.results)} results, not one", "cond")
        if attributes.get("trips") is None:
            raise self._error(name, " of kind while needs attributes: {trips: N}, how often it runs")
        values = dict(zip(body.inputs, inputs, strict=True))
        for p, x in values.items():
            follows = self._entry_edges(x, after)
            if follows or not isinstance(x, str):
                values[p] = self._identity(f"{name}/{p}", x, follows)
        changing = {p: values[p] for p, r in zip(body.inputs, body.results, strict=True) if r != p}
        if not changing:
            raise self._error(name, ": the body of a loop changes none of its variables", "body")
        first, awaited = next(iter(changing)), self._is_awaited(record["name"])
        unread: dict[str, list[str]] = {"body": [], "test": []}  # their last ops that nothing reads

        def inner_inputs(names: Mapping[str, str]) -> list[str]:
            return [names[p if p in changing else values[p]] for p in body.inputs]

        def step(builder: GraphBuilder, names: dict[str, str]) -> dict[str, str]:
            pivot = cache(lambda: [self._identity(f"{name}/body", names[first])])
            free = frozenset(names[x] for p, x in values.items() if p not in changing)
            results, ends = self._write(
                body, f"{name}/body/", inner_inputs(names), "body", pivot=pivot, free=free, awaited=awaited
            )
            unread["body"] = [end for end in ends if end not in results]
            return {p: r for p, r in zip(body.inputs, results, strict=True) if p in changing}

        def decide(builder: GraphBuilder, names: dict[str, str]) -> str:
            assert test is not None
            context = {"pivot": lambda: [names[first]], "awaited": awaited}
            results, ends = self._write(test, f"{name}/test/", inner_inputs(names), "cond", **context)
            unread["test"] = [end for end in ends if end not in results]
            return str(results[0])

        from scenarios.ops.control_flow import while_loop

        parallel_iterations = attributes.get("parallel_iterations", 10)
        exits = while_loop(
            self.builder,
            name,
            changing,
            step,
            trips=attributes["trips"],
            invariants=list(dict.fromkeys(x for p, x in values.items() if p not in changing)),
            parallel_iterations=parallel_iterations,
            condition=decide if test is not None else None,
        )
        results = [exits[p] if p in changing else values[p] for p in body.inputs]
        if not awaited or not any(unread.values()):
            return results, list(exits.values())

        def add(kind: str, inputs: list[Any], after: Sequence[str] = (), **facts: Any) -> str:
            facts |= {"inputs": inputs, "after": after, "duration_ns": 0}
            return self.builder.op(f"{name}/body_end/{kind}", kind=kind, **facts)

        # A value that waits in each iteration for the ops that nothing reads: what follows waits for it.
        frame = {"frame": name, "parallel_iterations": parallel_iterations}
        enter = add("enter", [values[first]], attributes=frame)
        merge = add("merge", [enter, (f"{name}/body_end/next_iteration", 1)])
        switch = add("switch", [merge, f"{name}/cond"], unread["test"], outputs=(0, 0))
        add("next_iteration", [f"{switch}:1"], unread["body"])
        return results, [*exits.values(), add("exit", [switch])]


def _op_of(value: Any) -> Any:
    """Return the op that makes a value; of an earlier iteration, the value."""
    return (split_output(value) or (value, 0))[0] if isinstance(value, str) else value


def _shift_back(value: Any, distance: int) -> Any:
    """Return a reference from `distance` iterations further back."""
    if not distance:
        return value
    return (value, distance) if isinstance(value, str) else (value[0], value[1] + distance)
