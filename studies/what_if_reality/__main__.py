"""Two recordings of one program under two settings: one predicted from the other, and held against it.

    python -m studies.what_if_reality A B [--step KERNEL] [--without RANGE]

::

    A ──► graph of A ──┬── with the kernels of B ─────────────┐
                       ├── and with the host's work of B ─────┼──► predicted ◄── error ──► B, recorded
                       └── without the host's work in RANGE ──┘

Each line is a rule: what it was told of B stands in its name. The rules above the model are what one would do
without it: nothing changes; time goes as the kernels' total; the longer of host and kernels decides. All see the
same recordings, and none has a parameter.

``--step`` counts by steps: the median time from one kernel of this name to the next one. The span of a short
recording has half a step at each end, which a profiler that starts and stops makes longer. ``--without``
answers what the recorded change meant: the named range of the host, such as the data loader's, moved elsewhere.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from scenarios.importers import load_graph
from scenarios.recorded.setup import run_recorded
from sim import Graph
from sim.words.errors import InputError
from studies.what_if_reality.measures import Measures, recorded, simulated
from studies.what_if_reality.ranges import ranges_of, without
from studies.what_if_reality.transplant import host_work_ns, with_host, with_kernels

__all__ = ["Prediction", "predictions"]


class Prediction(NamedTuple):
    """What a rule says about the other recording.

    Attributes
    ----------
    rule : str
    step_ns : int
    busy_ns : int or None
        Of the GPU; None: the rule says nothing.
    """

    rule: str
    step_ns: int
    busy_ns: int | None = None


def predictions(
    a: Graph, b: Graph, step: str | None = None, less: Graph | None = None
) -> Iterator[Prediction]:
    """Yield what each rule predicts for `b` from `a`.

    Parameters
    ----------
    a, b : Graph
        Recordings of one program.
    step : str, optional
        Kernels from which to which a step lasts; default: the span.
    less : Graph, optional
        `a` without what the host does no more in `b`.
    """
    was, other = recorded(a, step), recorded(b, step)
    longest = max(other.busy, host_work_ns(b))
    yield Prediction("no change", was.step, was.busy)
    yield Prediction("as the kernels' total", round(was.step * other.busy / was.busy), other.busy)
    yield Prediction("the longer of host and kernels", round(longest * other.step / other.span), other.busy)
    cases = {
        "A's graph as recorded": a,
        "A's graph, B's kernels": with_kernels(a, b),
        "A's graph, B's kernels and host": with_host(with_kernels(a, b), b),
    }
    if less is not None:
        gone = host_work_ns(a) - host_work_ns(less)
        yield Prediction("less the time in the range", round(was.step * (1 - gone / was.span)), was.busy)
        cases |= {"A's graph without the range": less}
    for rule, graph in cases.items():
        run = simulated(run_recorded(graph), step)
        yield Prediction(rule, run.step, run.busy)


def _rows(found: Sequence[Prediction], was: Measures, other: Measures) -> Iterator[list[str]]:
    for each in found:
        change, seen = each.step_ns - was.step, other.step - was.step
        yield [
            each.rule,
            _ms(each.step_ns),
            f"{change / 1e6:+.3f}",
            f"{seen / 1e6:+.3f}",
            f"{100 * (each.step_ns / other.step - 1):+.1f} %",
            "–" if each.busy_ns is None else _ms(each.busy_ns),
        ]


def _load(path: Path) -> Graph:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* GPU tasks were launched before the trace begins")
        return load_graph(path)


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3f}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, for B from A and for A from B."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recordings", type=Path, nargs=2, metavar="RECORDING", help="A and B")
    parser.add_argument("--step", metavar="KERNEL", help="count from one kernel of this name to the next")
    parser.add_argument("--without", metavar="RANGE", help="what the host of A does in it is not done in B")
    given = parser.parse_args(arguments)
    paths = dict(zip("AB", given.recordings, strict=True))
    try:
        graphs = {name: _load(path) for name, path in paths.items()}
        measured = {name: recorded(graph, given.step) for name, graph in graphs.items()}
        print("As recorded (ms):\n")
        head = ["", "file", "span", "GPU busy", "GPU idle", "host works", "step"]
        rows = [
            [name, paths[name].name, *map(_ms, (all_.span, all_.busy, all_.idle)), *map(_ms, more)]
            for name, all_ in measured.items()
            for more in [(host_work_ns(graphs[name]), all_.step)]
        ]
        print(_markdown(head, rows))
        for one, other in (("A", "B"), ("B", "A")):
            less = None
            if given.without and one == "A":
                less = without(graphs["A"], *ranges_of(paths["A"], given.without))
            found = [*predictions(graphs[one], graphs[other], given.step, less)]
            if one == "B":
                found = [each._replace(rule=each.rule.translate(str.maketrans("AB", "BA"))) for each in found]
            print(f"{other} predicted from {one} (ms):\n")
            head = ["rule", "predicted", "change", "change seen", "off by", "GPU busy"]
            print(_markdown(head, [*_rows(found, measured[one], measured[other])]))
    except InputError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
