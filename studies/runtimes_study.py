"""The same graphs under every runtime: makespan, host time, why devices idle, peak memory.

Runtimes differ on graphs with branches, such as the graph files of CNNs
(`notebooks/02_one_graph_many_policies.ipynb`), and on a loop whose body has a slow op beside the chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from devices.machine import make_machine
from scenarios.fields.policy_fields import PolicyFields
from scenarios.file.document import Document
from scenarios.file.yaml_read import Node, Place
from scenarios.ops.control_flow import while_loop
from scenarios.run.decisions import resolve
from scenarios.run.execute import run_case
from scenarios.run.scenario import Case, Scenario
from scenarios.schema import ScenarioFile
from scenarios.workloads.workload import Work
from sim import Graph, GraphBuilder, Machine, Trace
from sim.base import plugins
from sim.base.errors import InputError
from sim.job.costs import issue_costs_ns
from sim.metrics import summary
from studies import machines

if TYPE_CHECKING:
    import pandas as pd

MACHINES: Final = {name: machines.MACHINES[name] for name in ("four cores", "one H200")}
"""A CPU of four cores that hands an op to a thread in 5 us, and a GPU with its host."""


def loop(trips: int = 8, parallel_iterations: int = 10) -> Graph:
    """Return a loop: per iteration a chain of 100 us, and an independent op of 600 us beside it.

    Parameters
    ----------
    trips : int
    parallel_iterations : int
    """

    def body(b: GraphBuilder, inside: dict[str, str]) -> dict[str, str]:
        b.op("slow", inputs=[inside["i"]], outputs=1 << 20, duration_ns=600_000)
        return {"i": b.op("step", inputs=[inside["i"]], outputs=1 << 20, duration_ns=100_000)}

    b = GraphBuilder("loop")
    b.op("zero", outputs=1 << 20, duration_ns=1000)
    while_loop(b, "loop", {"i": "zero"}, body, trips=trips, parallel_iterations=parallel_iterations)
    return b.build()


def frameworks() -> dict[str, Mapping[str, Any]]:
    """Return the registered runtimes that run any graph; the others are for pipelines.

    Examples
    --------
    >>> "tvm-vm" in frameworks(), "torchgpipe" in frameworks()
    (True, False)
    """
    found = {name: plugins.lookup("sim.runtimes", name) for name in plugins.names("sim.runtimes")}
    policies = plugins.names("sim.policies")
    return {name: runtime for name, runtime in found.items() if runtime["name"] in policies}


def run_under(runtime: str, graph: Graph, machine: Machine) -> Trace:
    """Run a graph under a runtime.

    Parameters
    ----------
    runtime : str
        A name from ``sim runtimes``.
    graph, machine

    Raises
    ------
    InputError
        The runtime is unknown.
    """
    document = Document(Node({}, Place(f"runtime {runtime}")), Path())
    decisions = resolve(PolicyFields(runtime=runtime), runtime, document, ())
    nothing = ScenarioFile.model_validate({"workload": {"ops": {"replaced": {}}}})
    work = Work(graph, machine, lambda trace: {}, lambda trace, advise: None)
    scenario = Scenario(nothing, document)
    return run_case(Case(scenario, decisions, scenario, (), work)).trace


def compare_runtimes(graphs: Iterable[Graph], runtimes: Iterable[str]) -> pd.DataFrame:
    """Return one row for each graph, machine of `MACHINES` and runtime.

    Returns
    -------
    DataFrame
        ``graph, machine, runtime, makespan_us, host_us`` (issuing, over all threads), ``idle_us`` of the
        device over the whole run, its main reason, ``peak_MB``; and ``cannot run``, the reason if
        a runtime cannot run a graph.
    """
    import pandas as pd

    rows = []
    runtimes = list(runtimes)
    made = {name: make_machine(spec) for name, spec in MACHINES.items()}
    for graph in graphs:
        for name, machine in made.items():
            for runtime in runtimes:
                row: dict[str, Any] = {"graph": graph.name, "machine": name, "runtime": runtime}
                rows.append(row)
                try:
                    trace = run_under(runtime, graph, machine)
                except InputError as error:  # for example, a loop has no fixed order to capture
                    row["cannot run"] = str(error)
                    continue
                [use] = summary(trace)["devices"].values()
                live = trace.tasks["op"][trace.tasks["dead"] == 0]
                reasons = sorted(use["idle_reasons"].items(), key=lambda item: -item[1])
                row.update(
                    {
                        "makespan_us": round(trace.makespan_ns / 1000),
                        "host_us": round(int(issue_costs_ns(trace.job)[live].sum()) / 1000),
                        "idle_us": round(use["idle_ns"] / 1000),
                        "why idle": reasons[0][0] if reasons and reasons[0][1] else "",
                        "peak_MB": round(use["peak_memory_bytes"] / 1e6, 1),
                    }
                )
    return pd.DataFrame(rows)
