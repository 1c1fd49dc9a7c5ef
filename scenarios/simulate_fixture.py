"""The pytest fixture ``simulate``: runs a scenario file, a scenario as a mapping, or a graph in Python.

::

    simulate("s.yaml", policy="1f1b")               a file beside the test
    simulate({"machine": {...}, ...}, policy=Mine)  a policy class of your own
    simulate(graph, machine, Mine(window=4))        no scenario at all
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from devices.describe.quantities import Strict
from devices.machine import make_machine
from scenarios.expectations import read_expectations
from scenarios.fields.policy_fields import Expect
from scenarios.fields.results import Value, result_of_run
from scenarios.file.document import Document
from scenarios.file.faults import scenario_error
from scenarios.file.yaml_read import read_yaml_text
from scenarios.regression import Rewritten, write_golden
from scenarios.run.execute import names_of, run_case
from scenarios.run.scenario import Scenario, scenario_of
from sim.base.errors import InputError, SimError
from sim.base.plugins import NOTHING, Allowed, Origin
from sim.graph.graph import Graph
from sim.machine.machine import Machine
from sim.metrics import summary
from sim.policy import Policy
from sim.simulation import simulate
from sim.trace import Trace

# ----------------------------------------------------------------------------------------------------------
# The run that the fixture ``simulate`` returns; its assertions say what does not hold.
#
#     run["makespan"] == 33_000_000
#     run.order("rank0")[:2] == ["0F0", "0F1"]
#     run.expect({"makespan": {"at_most": "1.0 x base"}}, base=base)

_Called = TypeVar("_Called", bound=Callable[..., Any])


def in_short(call: _Called) -> _Called:
    """Hide our own frames from the traceback of a caller's mistake, so that it ends at the caller."""

    @wraps(call)
    def short(*arguments: Any, **named: Any) -> Any:
        __tracebackhide__ = True
        try:
            return call(*arguments, **named)
        except (SimError, AssertionError) as error:
            raise error.with_traceback(None) from None

    return short  # type: ignore[return-value]


class _Conditions(Strict):
    """The argument of `Simulated.expect`."""

    expect: Expect


@dataclass(frozen=True, eq=False)
class Simulated:
    """A run, with methods for assertions.

    Attributes
    ----------
    trace : Trace
        All tasks; `Trace.to_pandas` makes a table of them.
    summary : dict
        What ``sim run --json`` prints.
    policy : str
        Label of the run.
    document : Document
        Document to which messages refer: the test, or the scenario that it ran.
    new_tables : dict, optional
        Tables of ops that were rewritten. None: none may be rewritten.
    """

    trace: Trace
    summary: Mapping[str, Any]
    policy: str
    document: Document
    new_tables: Rewritten | None = None

    @property
    def makespan_ns(self) -> int:
        """End of the last task."""
        return self.trace.makespan_ns

    @cached_property
    def idle_ns(self) -> dict[str, int]:
        """Time during which each device executes nothing."""
        return {name: use["idle_ns"] for name, use in self.summary["devices"].items()}

    def order(self, device: str | None = None) -> list[str]:
        """Return the names of tasks in order of their starts, on all devices or one."""
        return list(self["order" if device is None else f"order.{device}"])

    @in_short
    def __getitem__(self, name: str) -> Value:
        """Return a result by its name in ``expect:``, in base units.

        Raises
        ------
        InputError
            The run has no such result.
        """
        return result_of_run(name, self.summary, self.trace)

    @in_short
    def expect(self, conditions: Mapping[str, Any], **others: Simulated) -> None:
        """Assert conditions as in ``expect:`` of a scenario.

        Parameters
        ----------
        conditions : mapping
            ``{"makespan": {"at_most": "45us"}, "order": ["a", "b"], "schedule": "golden.csv"}``.
        **others : Simulated
            Runs that conditions name: ``{"makespan": {"at_most": "1.0 x base"}}`` with ``base=run``.

        Raises
        ------
        AssertionError
            A condition does not hold: one line each, and for a schedule what moved first.
        InputError
            A condition is wrong.
        """
        text = json.dumps({"expect": conditions})
        document = replace(self.document, root=read_yaml_text(text, self.document.path.name, places=False))
        try:
            read = _Conditions.model_validate(document.root.plain())
        except ValidationError as error:
            raise scenario_error(error, _Conditions, document) from None
        names = names_of(self.trace.job)
        failed = []
        for expectation in read_expectations(read.expect, document, ("expect",), list(others)):
            expectation.check_name(names, with_table=self.new_tables is None)
            new_tables = self.new_tables is not None
            outcome = expectation.hold(self, others.__getitem__, new_tables=new_tables)
            if outcome.passed:
                continue
            if expectation.table is not None and self.new_tables is not None:
                write_golden(expectation.table, self, self.new_tables)
            else:
                failed.append(outcome.text)
        if failed:
            raise AssertionError("\n".join([f"under {self.policy}, not as expected:", *failed]))

    def __repr__(self) -> str:
        """Return the text that a failing test shows."""
        return f"<{self.policy}: {self.trace.makespan_ns:,} ns, {len(self.trace):,} tasks>"


# ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Simulate:
    """Runs scenarios and graphs for a test; the value of the fixture ``simulate``.

    Attributes
    ----------
    test : Path
        File of the test: relative paths start at its folder.
    new_tables : dict, optional
        See `Simulated`; given with ``--sim-update``.
    allowed : Allowed
        ``--sim-allow-code``, ``--sim-allow-outside``.
    """

    test: Path
    new_tables: Rewritten | None = None
    allowed: Allowed = NOTHING

    def __repr__(self) -> str:
        """Return the text that a failing test shows."""
        return f"<simulate for {self.test.name}>"

    @in_short
    def __call__(
        self,
        work: str | Path | Mapping[str, Any] | Graph,
        machine: Machine | Mapping[str, Any] | None = None,
        policy: str | Policy | type[Policy] | None = None,
        *,
        sets: Iterable[str] = (),
        **options: Any,
    ) -> Simulated:
        """Run a scenario or graph, check the invariants of its trace, and return the run.

        Parameters
        ----------
        work : str, Path, mapping or Graph
            A scenario file, the content of one, or a graph.
        machine : Machine or mapping, optional
            For a graph: the machine, or its description as in a scenario.
        policy : str, Policy or class, optional
            Label of an entry of ``compare``, name of a policy, or a policy of your own. Default: that of the
            scenario; for a graph: ``ready-queue``.
        sets : iterable of str
            For a scenario: ``KEY=VALUE``, as for ``--set``.
        **options
            For a graph: other arguments of `sim.simulate`, such as ``iterations``.

        Raises
        ------
        InputError
            Something about the arguments is wrong.
        RunError
            The run cannot continue: out of memory, stuck.
        """
        decider = policy() if isinstance(policy, type) else policy
        if isinstance(work, Graph):
            return self._graph(work, machine, decider, options)
        if machine is not None or options:
            arguments = ", ".join(options if machine is None else ["machine", *options])
            raise InputError(f"{arguments}: a scenario says it itself; change it with sets=['KEY=VALUE']")
        scenario = self._scenario(work, sets)
        case = scenario.case(decider if isinstance(decider, str) else None)
        if isinstance(decider, Policy):
            workload = scenario.content.workload
            if workload.deciders:
                word, owner = workload.decider
                example = workload.default_policy() or {"name": "1f1b"}
                raise InputError(f"{owner}'s policy is its {word}: name one, as policy={example['name']!r}")
            label = type(decider).__name__
            case = replace(case, decisions=case.decisions._replace(policy=decider, label=label))
        result = run_case(replace(case, expectations=()), check=True)
        return Simulated(result.trace, result.to_json(), result.policy, self._document, self.new_tables)

    def _scenario(self, work: str | Path | Mapping[str, Any], sets: Iterable[str]) -> Scenario:
        if isinstance(work, Mapping):
            root = read_yaml_text(json.dumps(work), self.test.name, places=False)
            document = replace(self._document, root=root)
        else:
            document = Document.read(self.test.parent / work, self.allowed)
        return scenario_of(document.with_settings(sets))

    def _graph(
        self,
        graph: Graph,
        machine: Machine | Mapping[str, Any] | None,
        policy: str | Policy | None,
        options: Any,
    ) -> Simulated:
        if machine is None:
            raise InputError("a graph needs a machine: simulate(graph, machine, policy)")
        origin = Origin(self.test.parent, self.allowed.code)
        if not isinstance(machine, Machine):
            machine = make_machine(machine, origin=origin)
        if isinstance(policy, Policy):
            name, decider = type(policy).__name__, policy
        else:
            name = policy or "ready-queue"
            decider = origin.lookup("sim.policies", name)()
        trace = simulate(graph, machine, decider, **options)
        trace.check()
        return Simulated(trace, {**summary(trace), "policy": name}, name, self._document, self.new_tables)

    @property
    def _document(self) -> Document:
        """Document to which messages of the test's expectations refer."""
        return Document(read_yaml_text("{}", self.test.name), self.test, allowed=self.allowed)
