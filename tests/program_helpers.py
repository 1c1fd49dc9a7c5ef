"""Random programs with conditions and loops, for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from scenarios.ops.control_flow import cond, while_loop
from sim import Graph, GraphBuilder


def _long(entries: list[Any]) -> list[Any]:
    """Return a list that is longer than any of these programs asks for."""
    return entries * 100


@st.composite
def programs(draw: st.DrawFn, logs: bool = False) -> Graph:
    """Random nests of chains, conditions and loops over one or two values.

    With `logs` some ops follow a control trigger: they run whatever became of what the trigger follows.
    """
    b = GraphBuilder("random")
    b.op("x", duration_ns=1), b.op("y", duration_ns=2)
    count = iter(range(1000))

    def block(b: GraphBuilder, values: list[str], depth: int) -> list[str]:
        for _ in range(draw(st.integers(1, 3))):
            k, n = draw(st.integers(0, len(values) - 1)), next(count)
            kinds = ["op", "join", "if", "while"] if depth else ["op", "join"]
            what = draw(st.sampled_from([*kinds, "log"] if logs else kinds))
            if what == "log":
                b.op(
                    f"trigger{n}", kind="control_trigger", after=[values[k].partition(":")[0]], duration_ns=1
                )
                b.op(f"log{n}", after=[f"trigger{n}"], duration_ns=2)
            elif what in ("op", "join"):
                inputs = [values[k]] if what == "op" else values
                values = [*values[:k], b.op(f"op{n}", inputs=inputs, duration_ns=draw(st.integers(0, 9))),
                          *values[k + 1 :]]  # fmt: skip
            elif what == "if":
                values = condition(b, values, k, n, depth)
            else:
                values = loop(b, values, n, depth)
        return values

    def condition(b: GraphBuilder, values: list[str], k: int, n: int, depth: int) -> list[str]:
        outcome = draw(st.one_of(st.booleans(), st.lists(st.booleans(), min_size=1, max_size=4).map(_long)))
        b.op(f"p{n}", inputs=[values[k]], duration_ns=1, attributes={"outcome": outcome})

        def side(b: GraphBuilder, inside: dict[str, str]) -> list[str]:
            return block(b, [inside[x] for x in values], depth - 1)

        return cond(b, f"if{n}", f"p{n}", list(dict.fromkeys(values)), side, side)

    def loop(b: GraphBuilder, values: list[str], n: int, depth: int) -> list[str]:
        names = [f"v{i}" for i in range(len(values))]

        def body(b: GraphBuilder, inside: dict[str, str]) -> dict[str, str]:
            return dict(zip(names, block(b, [inside[x] for x in names], depth - 1), strict=True))

        out = while_loop(
            b,
            f"loop{n}",
            dict(zip(names, values, strict=True)),
            body,
            trips=draw(
                st.one_of(st.integers(0, 3), st.lists(st.integers(0, 3), min_size=1, max_size=3).map(_long))
            ),
            parallel_iterations=draw(st.sampled_from([1, 2, 10])),
            condition_ns=1,
        )
        return [out[name] for name in names]

    last = block(b, ["x", "y"], 2)
    b.op("end", inputs=last, duration_ns=1)
    return b.build()
