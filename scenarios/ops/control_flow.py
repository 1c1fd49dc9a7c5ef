"""Conditions and loops as the ops into which TensorFlow translates them.

`cond` and `while_loop` add switches, merges, enters, exits and next_iterations to a `GraphBuilder`,
so that nobody has to wire frames by hand::

    cond:        pred ─┬────────────────────────┐
                 x ──► switch ─true──► then ──► merge ──► result
                          └────false─► else ──►───┘

    while_loop:  x ──► enter ──► merge ──► switch ──true──► body ──► next_iteration ──┐
                                   ▲ └► cond ─► loop_cond ─┘ └─false──► exit ──► result │
                                   └─────────────────────────────────────────────────┘

Source: Yu et al., "Dynamic control flow in large-scale machine learning", EuroSys 2018, sections 4.1-4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sim import GraphBuilder

Branch = Callable[[GraphBuilder, dict[str, str]], Sequence[str]]
Body = Callable[[GraphBuilder, dict[str, str]], Mapping[str, str]]
Test = Callable[[GraphBuilder, dict[str, str]], str]


def cond(
    builder: GraphBuilder,
    name: str,
    predicate: str,
    values: Sequence[str],
    then: Branch,
    otherwise: Branch,
    *,
    device: str | None = None,
) -> list[str]:
    """Add a condition and return the names of its results.

    Parameters
    ----------
    builder : GraphBuilder
    name : str
        Prefix of the ops that are added.
    predicate : str
        The op that decides; give it ``attributes={"outcome": ...}`` (see `sim.readiness.outcomes`).
    values : sequence of str
        Tensors that the branches read.
    then, otherwise : callable
        ``then(builder, {value: its name inside the branch})`` adds the branch's ops and returns its
        results; both branches return equally many.
    device : str, optional
        Device of switches and merges.

    Raises
    ------
    ValueError
        The branches return a different number of results.

    Examples
    --------
    >>> b = GraphBuilder()
    >>> _ = b.op("x"), b.op("p", attributes={"outcome": True})
    >>> cond(b, "if", "p", ["x"], lambda b, v: [b.op("yes", inputs=[v["x"]])],
    ...      lambda b, v: [b.op("no", inputs=[v["x"]])])
    ['if/merge0']
    """
    sides: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for k, value in enumerate(values):
        facts: dict[str, Any] = {"outputs": (0, 0), "duration_ns": 0, "device": device}
        switch = builder.op(f"{name}/switch{k}", kind="switch", inputs=[value, predicate], **facts)
        sides[0][value], sides[1][value] = switch, f"{switch}:1"
    results = list(then(builder, sides[1])), list(otherwise(builder, sides[0]))
    if len(results[0]) != len(results[1]):
        raise ValueError(f"{name}: the branches return {len(results[0])} and {len(results[1])} results")
    return [
        builder.op(f"{name}/merge{k}", kind="merge", inputs=[no, yes], duration_ns=0, device=device)
        for k, (yes, no) in enumerate(zip(*results, strict=True))
    ]


def while_loop(
    builder: GraphBuilder,
    name: str,
    variables: Mapping[str, str],
    body: Body,
    *,
    trips: int | Sequence[int],
    invariants: Sequence[str] = (),
    parallel_iterations: int = 10,
    condition_ns: int = 0,
    condition: Test | None = None,
    device: str | None = None,
) -> dict[str, str]:
    """Add a loop; return, for each variable, the name of its value after the loop.

    Parameters
    ----------
    builder : GraphBuilder
    name : str
        Name of the frame, and prefix of the ops that are added.
    variables : mapping of str to str
        Loop variable → the tensor with its first value.
    body : callable
        ``body(builder, {variable or invariant: its name inside})`` adds the body's ops and returns,
        for each variable, the tensor with its next value (a variable left out keeps its value).
    trips : int or sequence of int
        Number of iterations; a list has one entry for each time the loop is entered.
    invariants : sequence of str
        Tensors from outside that every iteration reads, also the last one, which ends the loop: let an op of
        the body that reads nothing else come `after` a variable, or it runs once too often.
    parallel_iterations : int
        Maximum number of iterations in flight; 1 is one after another.
    condition_ns : int
        Duration of the condition in each iteration.
    condition : callable, optional
        ``condition(builder, {variable or invariant: its name inside})`` adds the condition's ops, in place
        of a single one, and returns the op that decides.
    device : str, optional
        Device of the control-flow ops.

    Examples
    --------
    >>> b = GraphBuilder()
    >>> _ = b.op("zero")
    >>> out = while_loop(b, "loop", {"i": "zero"}, lambda b, v: {"i": b.op("add", inputs=[v["i"]])}, trips=3)
    >>> out["i"], len(b)
    ('loop/i/exit', 9)
    """

    def add(op: str, kind: str, inputs: Sequence[Any], after: Sequence[str] = (), **attributes: Any) -> str:
        outputs = (0, 0) if kind == "switch" else (0,)
        facts: dict[str, Any] = {"duration_ns": 0, "device": device, "attributes": attributes}
        return builder.op(f"{name}/{op}", kind=kind, inputs=inputs, after=after, outputs=outputs, **facts)

    frame: dict[str, Any] = {"frame": name, "parallel_iterations": parallel_iterations}
    merges: dict[str, str] = {}
    for variable, initial in variables.items():
        enter = add(f"{variable}/enter", "enter", [initial], **frame)
        merges[variable] = add(f"{variable}/merge", "merge", [enter, (f"{name}/{variable}/next", 1)])
    inner = {
        tensor: add(f"{tensor}/enter", "enter", [tensor], constant=True, **frame) for tensor in invariants
    }
    if condition is not None:
        test = condition(builder, {**inner, **merges})
    else:
        test = builder.op(
            f"{name}/test", inputs=list(merges.values())[:1], duration_ns=condition_ns, device=device
        )
    loop_cond = add("cond", "loop_cond", [test], trips=trips)
    for variable, merge in merges.items():
        switch = add(f"{variable}/switch", "switch", [merge, loop_cond])
        inner[variable] = f"{switch}:1"
    fixed = {inner[tensor] for tensor in invariants}
    after = {**inner, **body(builder, dict(inner))}
    results = {}
    for variable in variables:
        # An invariant would go on to the next iteration without waiting for the condition. It is put behind
        # the condition, as by TensorFlow's `_MaybeAddControlDependency` (python/ops/control_flow_ops.py).
        edges = [add(f"{variable}/body", "identity", [inner[variable]])] if after[variable] in fixed else []
        add(f"{variable}/next", "next_iteration", [after[variable]], edges)
        results[variable] = add(f"{variable}/exit", "exit", [f"{name}/{variable}/switch"])
    return results
