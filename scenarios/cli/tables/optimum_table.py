"""What `sim optimum` prints: the best, how sure that is, and how far from it the policies are."""

from __future__ import annotations

from scenarios.cli.text_tables import print_table, strong
from scenarios.run.execute import Result
from scenarios.tune.optimum import Optimum
from sim.export.result_rows import percent
from sim.words.units import format_duration

__all__ = ["print_optimum"]


def print_optimum(found: Optimum, limit_ns: int) -> None:
    """Print the best, what it is the best of, and a row a policy."""
    base = found.base
    of = "on the devices and with the issuing of" if found.placed else "on any devices, with the issuing of"
    print(strong(f"{base.scenario}: orders and streams, {of} {base.policy}"))
    print(found.told(limit_ns))
    if found.left_out:
        print("the bound leaves out " + "; ".join(found.left_out))
    if found.why_not:
        print(found.why_not)
    print()
    rows = [("optimum" if found.proven else "best found", found.best)] if found.best is found.found else []
    rows += [(result.policy, result) for result in found.results]
    print_table(
        [
            {
                "policy": name,
                "makespan": format_duration(result.trace.makespan_ns),
                "above the bound": _above(found, result),
            }
            for name, result in sorted(rows, key=lambda row: row[1].trace.makespan_ns)
        ]
    )


def _above(found: Optimum, result: Result) -> str:
    """Return by how much a run is above the bound, or why the bound is none of it."""
    if (why := found.unlike(result)) is not None:
        return f"({why})"
    return percent(result.trace.makespan_ns / found.lower_bound_ns - 1) if found.lower_bound_ns else ""
