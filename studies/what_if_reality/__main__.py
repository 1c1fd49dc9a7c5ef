"""Two recordings of one program under two settings: one predicted from the other and compared with it.

    python -m studies.what_if_reality A B [--step KERNEL] [--without RANGE] [--what-if CHANGES]

::

    A ──► graph of A ──┬── with the kernels of B ───────────────┐
                       ├── and with as much work of the host ───┼──► predicted ◄─ error ─► B as recorded
                       ├── without what the host does in RANGE ─┤
                       └── with CHANGES, a workload's what_if ──┘

The name of a rule says what it knows of B. The first rules need no model: nothing changes; time scales like
the kernels'; the longer of host and kernels decides; the range is subtracted. No rule has a parameter.

``--step`` counts by steps: the median time from one kernel of this name to the next one. A profiler that
starts and stops makes the first and the last step of a recording longer. ``--without`` describes the other
setting: a named range of the host's time in A, such as the data loader's, is spent elsewhere in B.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from scenarios.file.yaml_read import read_yaml_text
from scenarios.recorded.changes import apply_changes
from scenarios.recorded.setup import run_recorded
from scenarios.variants.what_ifs import read_what_if
from sim import Graph
from sim.base.errors import in_file
from studies.program import markdown_table, run
from studies.recorded_ranks import load_ranks, ms
from studies.what_if_reality.transplant import (
    Measures,
    host_work_ns,
    ranges_of,
    recorded,
    simulated,
    with_host,
    with_kernels,
    without_ranges,
)


class Prediction(NamedTuple):
    """Prediction of the other recording by a rule.

    Attributes
    ----------
    rule : str
    step_ns : int
    idle_ns : int or None
        Idle time of the GPU in all of the recording; None: the rule does not predict it.
    """

    rule: str
    step_ns: int
    idle_ns: int | None = None


def predictions(
    a: Graph, b: Graph, step: str | None = None, changed: Mapping[str, Graph] | None = None, range_ns: int = 0
) -> Iterator[Prediction]:
    """Yield the prediction of `b` from `a` by each rule.

    Parameters
    ----------
    a, b : Graph
        Recordings of one program.
    step : str, optional
        Kernel name that delimits steps; default: the span.
    changed : mapping, optional
        More graphs derived from `a`, by rule.
    range_ns : int
        Time of the host of `a` that is removed.
    """
    was, other = recorded(a, step), recorded(b, step)
    longest = max(other.busy, host_work_ns(b))
    yield Prediction("no change", was.step)
    yield Prediction("as the time of the kernels", round(was.step * other.busy / was.busy))
    yield Prediction("the longer of host and kernels in B", round(longest * other.step / other.span))
    if range_ns:
        yield Prediction("less the time in the range", round(was.step * (1 - range_ns / was.span)))
    graphs = {
        "A's graph": a,
        "A's graph, B's kernels": with_kernels(a, b),
        "A's graph, B's kernels and work of the host": with_host(with_kernels(a, b), b),
    }
    for rule, graph in (graphs | dict(changed or {})).items():
        found = simulated(run_recorded(graph), step)
        yield Prediction(rule, found.step, found.idle)


def _rows(found: Sequence[Prediction], was: Measures, other: Measures) -> Iterator[list[str]]:
    for each in found:
        yield [
            each.rule,
            ms(each.step_ns),
            f"{(each.step_ns - was.step) / 1e6:+.3f}",
            f"{100 * (each.step_ns / other.step - 1):+.1f} %",
            "–" if each.idle_ns is None else ms(each.idle_ns),
        ]


def main(
    path_a: Annotated[Path, typer.Argument(metavar="A")],
    path_b: Annotated[Path, typer.Argument(metavar="B")],
    step: Annotated[str | None, typer.Option(help="count from one kernel of this name to the next")] = None,
    without: Annotated[
        str | None, typer.Option(help="what the host of A does in it is not done in B")
    ] = None,
    what_if: Annotated[str | None, typer.Option(help="what B changes, as the key what_if")] = None,
) -> None:
    """Print the recorded times, and the predictions of B from A, and of A from B."""
    a, b = (load_ranks(path, format=None) for path in (path_a, path_b))
    was, other = recorded(a, step), recorded(b, step)
    rows = [
        [
            name,
            path.name,
            ms(each.step),
            ms(each.span),
            ms(each.busy),
            ms(each.idle),
            ms(host_work_ns(graph)),
        ]
        for name, path, each, graph in (("A", path_a, was, a), ("B", path_b, other, b))
    ]
    print("As recorded (ms):\n")
    print(markdown_table(["", "recording", "step", "span", "GPU busy", "GPU idle", "host works"], rows))
    changed, range_ns = {}, 0
    if without:
        less = without_ranges(a, *ranges_of(path_a, without))
        changed["A's graph without the range"] = less
        range_ns = host_work_ns(a) - host_work_ns(less)
    if what_if:
        changes = read_yaml_text(what_if, "--what-if", places=False).plain()
        with in_file("--what-if"):
            changed[f"A's graph, {what_if}"] = apply_changes(a, read_what_if(changes))
    head = ["rule", "predicted", "change", "off by", "GPU idle"]
    found = [*predictions(a, b, step, changed, range_ns)]
    print(f"B from A (ms); the change seen is {(other.step - was.step) / 1e6:+.3f}:\n")
    print(markdown_table(head, [*_rows(found, was, other)]))
    back = [each._replace(rule=each.rule.translate(_SWAPPED)) for each in predictions(b, a, step)]
    print(f"A from B (ms); the change seen is {(was.step - other.step) / 1e6:+.3f}:\n")
    print(markdown_table(head, [*_rows(back, other, was)]))


_SWAPPED = str.maketrans("AB", "BA")


if __name__ == "__main__":
    run(main)
