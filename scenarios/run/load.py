"""Reads scenarios from a file or from a text.

::

    file ──► Document ──--set──► Document ──► Scenario
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from scenarios.file.document import Document
from scenarios.run.scenario import Scenario, scenario_of
from sim.base.plugins import Allowed


def load_scenario(
    path: str | Path,
    *,
    sets: Iterable[str] = (),
    vary: Iterable[str] = (),
    allow_code: bool = False,
    allow_outside: bool = False,
) -> Scenario:
    """Read a scenario file.

    Parameters
    ----------
    path : path
    sets : iterable of str
        ``KEY=VALUE`` texts that change values of the file before it is checked: KEY is a dotted path (list
        items by number), VALUE is a YAML value.
    vary : iterable of str
        Further texts of this kind, from one point of a sweep: messages call them ``--vary``.
    allow_code : bool
        Whether the scenario may name ``module:Class``, which runs other people's code.
    allow_outside : bool
        Whether it may name files outside its own folder.

    Raises
    ------
    ScenarioError
        Something is wrong with the file; the message has file, line and column.

    Examples
    --------
    >>> load_scenario("scenarios/examples/quickstart.yaml", sets=["workload.batch=1"]).name
    'Inception v1 on one H200'
    """
    document = Document.read(path, Allowed(allow_code, allow_outside))
    return scenario_of(document.with_settings(sets).with_settings(vary, "--vary"))


def read_scenario(
    text: str,
    *,
    folder: str | Path = ".",
    sets: Iterable[str] = (),
    allow_code: bool = False,
    allow_outside: bool = False,
) -> Scenario:
    """Return the scenario in a text, for use in a program or a notebook.

    Parameters
    ----------
    text : str
    folder : path
        Folder of the files that the text names.
    sets : iterable of str
        As for `load_scenario`.
    allow_code, allow_outside : bool
        As for `load_scenario`.

    Examples
    --------
    >>> scenario = read_scenario('''
    ... machine: {devices: {cpu0: {kind: cpu, cores: 2}}}
    ... workload: {ops: {a: {duration: 10us}, b: {duration: 20us}}}
    ... policy: ready-queue
    ... ''')
    >>> scenario.graph
    <Graph 'scenario': 2 ops, 2 tensors, 0 edges>
    """
    document = Document.from_text(text, folder, Allowed(allow_code, allow_outside))
    return scenario_of(document.with_settings(sets))
