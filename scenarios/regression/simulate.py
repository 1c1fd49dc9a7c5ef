"""What the pytest fixture ``simulate`` is: it runs a scenario, what would stand in one, or a graph in Python.

::

    simulate("s.yaml", policy="1f1b")               a file beside the test
    simulate({"machine": {...}, ...}, policy=Mine)  a policy class of your own
    simulate(graph, machine, Mine(window=4))        no scenario at all
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devices.machine import make_machine
from scenarios.file.document import Document
from scenarios.file.yaml_read import read_yaml_text
from scenarios.regression.simulated import Simulated, in_short
from scenarios.run.execute import run_case
from scenarios.run.load import load_scenario
from scenarios.run.scenario import scenario_of
from sim.graph.graph import Graph
from sim.machine.machine import Machine
from sim.metrics import summary
from sim.policy.policy import Policy
from sim.simulation import simulate
from sim.words.errors import InputError
from sim.words.plugins import Origin

if TYPE_CHECKING:
    from scenarios.run.scenario import Scenario

__all__ = ["Simulate"]


@dataclass(frozen=True)
class Simulate:
    """Runs scenarios and graphs for a test; what the fixture ``simulate`` is.

    Attributes
    ----------
    test : Path
        The file of the test: other files are found from its folder.
    new_tables : list of str, optional
        See `Simulated`: with ``--sim-update``.
    allow_code, allow_outside : bool
        ``--sim-allow-code``, ``--sim-allow-outside``.
    """

    test: Path
    new_tables: list[str] | None = None
    allow_code: bool = False
    allow_outside: bool = False

    def __repr__(self) -> str:
        """Return what a failing test shows of it."""
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
        """Run something, check the invariants of its trace, and return what came out.

        Parameters
        ----------
        work : str, Path, mapping or Graph
            A scenario file, what would stand in one, or a graph.
        machine : Machine or mapping, optional
            Of a graph: the machine, or what a scenario would say of it.
        policy : str, Policy or class, optional
            The label of an entry of ``compare``, the name of a policy, or a policy of your own. Default: that
            of the scenario; of a graph: ``ready-queue``.
        sets : iterable of str
            Of a scenario: ``KEY=VALUE``, as for ``--set``.
        **options
            Of a graph: other arguments of `sim.simulate`, as ``iterations``.

        Raises
        ------
        InputError
            Something of this is wrong.
        RunError
            The run cannot go on: out of memory, stuck.
        """
        own = policy() if isinstance(policy, type) else policy
        if isinstance(work, Graph):
            return self._graph(work, machine, own, options)
        if machine is not None or options:
            what = ", ".join(["machine"] * (machine is not None) + list(options))
            raise InputError(f"{what}: a scenario says it itself; change it with sets=['KEY=VALUE']")
        scenario = self._scenario(work, sets)
        case = scenario.case(own if isinstance(own, str) else None)
        if isinstance(own, Policy):
            if scenario.content.workload.schedules():
                raise InputError("a pipeline's policy is its schedule: name one, as policy='1f1b'")
            label = type(own).__name__
            case = replace(case, decisions=case.decisions._replace(policy=own, label=label))
        result = run_case(replace(case, expectations=()), check=True)
        return Simulated(result.trace, result.to_json(), result.policy, self._document, self.new_tables)

    def _scenario(self, work: str | Path | Mapping[str, Any], sets: Iterable[str]) -> Scenario:
        if isinstance(work, Mapping):
            document = replace(
                self._document, root=read_yaml_text(json.dumps(work), self.test.name, places=False)
            )
            return scenario_of(document.with_settings(sets), self.allow_code)
        path = self.test.parent / work
        return load_scenario(path, sets=sets, allow_code=self.allow_code, allow_outside=self.allow_outside)

    def _graph(
        self,
        graph: Graph,
        machine: Machine | Mapping[str, Any] | None,
        policy: str | Policy | None,
        options: Any,
    ) -> Simulated:
        if machine is None:
            raise InputError("a graph needs a machine: simulate(graph, machine, policy)")
        origin = Origin(self.test.parent, self.allow_code)
        if not isinstance(machine, Machine):
            machine = make_machine(machine, origin=origin)
        if isinstance(policy, Policy):
            name, own = type(policy).__name__, policy
        else:
            name = policy or "ready-queue"
            own = origin.lookup("sim.policies", name)()
        trace = simulate(graph, machine, own, **options)
        trace.check()
        return Simulated(trace, {**summary(trace), "policy": name}, name, self._document, self.new_tables)

    @property
    def _document(self) -> Document:
        """What expectations of the test are told by."""
        return Document(read_yaml_text("{}", self.test.name), self.test, allow_outside=self.allow_outside)
