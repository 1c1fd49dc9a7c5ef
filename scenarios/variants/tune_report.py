"""The findings of a search, as plain values, a table, a scenario, and a picture."""

from __future__ import annotations

from functools import reduce
from itertools import accumulate
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from policies.pipeline.custom import to_csv
from scenarios.builders.pipeline_graph import AsWritten
from scenarios.fields.results import RESULTS, column_of_result, label_result
from scenarios.file.document import Document
from scenarios.importers.graph_json import write_graph
from scenarios.run.conditions import keys_without_effect
from scenarios.run.scenario import Case, scenario_of
from scenarios.variants.tune import Tuning
from scenarios.variants.variant import attempt
from scenarios.workloads.pipeline_report import order_of_slots
from sim.base.errors import InputError
from sim.base.files import write_text
from sim.base.units import format_count
from sim.explain.bounds import bounds
from sim.trace import Trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


TUNING_SCHEMA: Final = "sim.tuning/1"
"""Value of ``"schema"`` in the output of ``sim tune --json``."""


def tuning_report(tuning: Tuning, against: str | None = None) -> dict[str, Any]:
    """Return what ``sim tune --json`` prints: the best trial, the starts of the search, the improvements."""
    trials, best = tuning.trials, None
    if tuning.best is not None:
        limits, makespan_ns = bounds(tuning.trace), tuning.trace.makespan_ns
        above = {"gap": limits.gap(makespan_ns), "no_gap": limits.no_gap}
        best = _plain(tuning, tuning.best) | {"lower_bound_ns": limits.lower_bound_ns, **above}
    report = {
        "schema": TUNING_SCHEMA,
        "goal": {
            "result": tuning.goal.result,
            "most": tuning.goal.most,
            "limits": [*map(str, tuning.goal.limits)],
        },
        "trials": len(trials),
        "seeds": tuning.seeds,
        "answers": len(tuning.answers),
        "best": best,
        "starts": [_plain(tuning, k) for k, trial in enumerate(trials) if trial.origin == "start"],
        "improvements": [_plain(tuning, k) for k in improvements(tuning)],
        "fresh": None if tuning.fresh is None else tuning.fresh._asdict(),
    }
    front = {} if against is None else {"front": [_plain(tuning, k) for k in tuning.front(against)]}
    return report | front


def improvements(tuning: Tuning) -> list[int]:
    """Return the trials that were the best so far when they were run."""
    best: list[int] = []
    for k in tuning.answers:
        if not best or tuning.cost(tuning.trials[k]) < tuning.cost(tuning.trials[best[-1]]):
            best.append(k)
    return best


def _plain(tuning: Tuning, k: int) -> dict[str, Any]:
    trial = tuning.trials[k]
    return {"trial": k + 1, "what": trial.origin, **trial.row}


def trial_table(tuning: Tuning) -> pd.DataFrame:
    """Return a table with one row per trial."""
    import pandas as pd

    return pd.DataFrame([_plain(tuning, k) for k in range(len(tuning.trials))])


# ----------------------------------------------------------------------------------------------------------
# The best trial as a scenario that can be run again: its settings, its plan, and its result.


def check_winner(path: str, scenario: str) -> None:
    """Raise if a file is not a possible place for the scenario: the files it names are found beside it.

    Raises
    ------
    InputError
        The folder is not the scenario's.
    """
    folder, home = Path(path).resolve().parent, Path(scenario).resolve().parent
    if folder != home:
        raise InputError(f"--out {path}: what a scenario names is found beside it; write into {home}")


def write_winner(tuning: Tuning, path: str) -> list[str]:
    """Write the best trial as a scenario, and its plan beside it; return the files.

    Raises
    ------
    InputError
        A file cannot be written.
    """
    assert tuning.best is not None
    assert tuning.case is not None
    best, goal, case = tuning.trials[tuning.best], tuning.goal, tuning.case
    is_own = case.label == case.base.case().label and case.scenario.document is case.base.document
    unit = RESULTS[goal.result.partition(".")[0]].unit
    best_word, count = "most" if goal.most else "least", format_count(len(tuning.trials), "trial")
    return write_found(
        path,
        case,
        tuning.trace,
        is_own=is_own and best.variant.schedule is None,
        expect={goal.result: unit.show(best.rows[0][goal.column])},
        head=f"Found by sim tune: the {best_word} {goal.result} of {count}.",
    )


def write_found(path: str, case: Case, trace: Trace, *, is_own: bool, expect: Any, head: str) -> list[str]:
    """Write a scenario and, unless its own policy decided the run (`is_own`), what was decided beside it.

    Returns the files. A plan has orders and streams; if that does not reproduce the run, it also has times.
    If the graph was compiled, the compiled one stands beside it. A pipeline has a table for the schedule
    ``custom`` instead.

    Raises
    ------
    InputError
        A file cannot be written, or the order of a pipeline's slots does not reproduce the run.
    """
    left_out = ("compare", "expect", "extends")
    document, schedule = case.scenario.document, case.decisions.schedule
    content: Any = {key: value for key, value in document.root.plain().items() if key not in left_out}
    beside: list[Path] = []
    if not is_own:
        if schedule is None:
            beside = [plan := Path(path).with_suffix(".plan.json")]
            write_text(plan, trace.plan().to_json())
            replay, follows = {"name": "replay", "file": plan.name}, case.decisions.policy.synchronisation
            content["policy"] = {**replay, "synchronisation": follows, "placement": replay, "streams": replay}
            if case.decisions.compile:
                beside.append(graph := Path(path).with_suffix(".graph.json"))
                write_graph(trace.job.graph, graph)
                content["workload"] = {"graph": graph.name}
        elif schedule.name != "custom" and isinstance(case.decisions.linearize, AsWritten):
            content["policy"] = schedule.model_dump(exclude_unset=True)
        else:
            beside = [plan := Path(path).with_suffix(".csv")]
            order = order_of_slots(trace, case.work.report(trace)["pipeline"]["devices"])
            write_text(plan, to_csv(order))
            chunks = {"chunks": order.chunks} if "pipeline" in content["workload"] else {}
            replicas = {"replicas": True} if len(order.placements) > 1 else {}
            content["policy"] = {"name": "custom", "file": plan.name, **chunks, **replicas}
    content["expect"] = expect

    def new_case() -> Case:
        return scenario_of(Document.from_text(_as_yaml(content), Path(path).parent, document.allowed)).case()

    for loc, _ in sorted(keys_without_effect(new_case()), key=lambda item: -len(item[0])):
        del reduce(getitem, loc[:-1], content)[loc[-1]]  # the settings may have left it so
    again = attempt(new_case()).result if beside else None
    if beside and (again is None or _starts(again.trace) != _starts(trace)):
        if schedule is not None:
            beside[0].unlink()
            raise InputError(f"{path}: not written: what was found is no mere order of slots")
        write_text(beside[0], trace.plan(timed=True).to_json())
    write_text(path, f"# {head}\n{_as_yaml(content)}")
    return [path, *map(str, beside)]


def _as_yaml(content: Any) -> str:
    text: str = yaml.dump(content, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=110)
    return text


def _starts(trace: Trace) -> list[tuple[str, int]]:
    """Return when the tasks start, by the names of their ops."""
    names = map(trace.job.graph.op_names.__getitem__, trace.tasks["op"].tolist())
    return sorted(zip(names, trace.tasks["start_ns"].tolist(), strict=True))


class _Plain(yaml.SafeDumper):
    """A YAML dumper that writes repeated values in full, without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True, so that a value is written out wherever it occurs."""
        return True


# ----------------------------------------------------------------------------------------------------------
# Pictures of a search: the best so far by trial, and the front of the goal against another result.


def tuning_figure(tuning: Tuning, against: str | None = None) -> Figure:
    """Return a figure of the progress of a search; with `against`, also of the front beside it.

    Parameters
    ----------
    tuning : Tuning
    against : str, optional
        Another result to minimize.
    """
    from sim.plot.shown import ShownFigure

    figure = ShownFigure(figsize=(12.0 if against else 7.0, 4.2), layout="constrained")
    axes = figure.subplots(1, 2 if against else 1, squeeze=False)[0]
    progress_plot(tuning, axes[0])
    if against:
        front_plot(tuning, against, axes[1])
    return figure


def progress_plot(tuning: Tuning, ax: Axes) -> None:
    """Draw every trial, and the best so far as a line."""
    from matplotlib.ticker import MaxNLocator

    from sim.plot.theme import OKABE_ITO, plain

    goal = tuning.goal
    xs = [k + 1 for k in tuning.answers]
    values = [tuning.trials[k].row[goal.column] for k in tuning.answers]
    best = list(accumulate(values, max if goal.most else min))
    ax.plot(xs, values, ".", color="0.7", markersize=3, label="trials", rasterized=True)
    ax.step(xs, best, where="post", color=OKABE_ITO[4], label="best so far")
    ax.set_xlabel("trial")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if pad := 0.08 * abs(best[0] - best[-1]):
        ax.set_ylim(min(best) - pad, max(best) + pad)  # far worse trials would hide the progress
    label_result(ax.yaxis, goal.result)
    ax.legend(frameon=False)
    plain(ax)


def front_plot(tuning: Tuning, against: str, ax: Axes) -> None:
    """Draw the goal against another result, and the Pareto front."""
    from sim.plot.theme import OKABE_ITO, plain

    goal, column = tuning.goal, column_of_result(against)
    rows = [trial.row for trial in tuning.trials]
    for label, ks, style, look in (
        ("trials", tuning.answers, ".", {"color": "0.7", "markersize": 4}),
        ("Pareto front", tuning.front(against), "o-", {"color": OKABE_ITO[4]}),
    ):
        points = [rows[k] for k in ks if column in rows[k]]
        ax.plot([p[column] for p in points], [p[goal.column] for p in points], style, label=label, **look)
    label_result(ax.xaxis, against)
    label_result(ax.yaxis, goal.result)
    ax.legend(frameon=False)
    plain(ax)
