"""What `sim policies NAME`, `sim runtimes NAME`, `sim devices NAME` tell: from signatures and docstrings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from cli_runner import sim
from scenario_texts import changed, write
from typer.testing import CliRunner

from scenarios.cli import app
from scenarios.reference import ParameterDoc, decisions, known_as, plain, read_docstring
from scenarios.run.load import load_scenario
from sim import Graph
from sim.base import plugins


def test_every_option_of_every_decision_is_documented_where_it_is_defined() -> None:
    """Whoever adds a parameter to a constructor says what it means, and what values it has."""
    found = list(decisions())
    assert len(found) > 80
    silent = [f"{one.name}: {o.name}" for one in found for o in one.options if not (o.meaning and o.type)]
    assert silent == []
    assert [one.name for one in found if not (one.summary and one.rule)] == []
    assert len({(one.decision.group, one.summary) for one in found}) == len(found), "two names of one"


class Base:
    """A base.

    Parameters
    ----------
    a, b : int
        Two.
    """


class Derived(Base):
    """A line.

    More of it.

    Parameters
    ----------
    *b : str
        ``"x"``, of
        two lines.

    Raises
    ------
    InputError
        Never.
    """


def test_a_docstring_is_taken_apart_and_a_class_takes_from_its_bases_what_it_does_not_say() -> None:
    found = read_docstring(Derived)
    assert (found.summary, found.text) == ("A line.", "More of it.")
    assert found.parameters == {
        "a": ParameterDoc("int", "Two."),
        "b": ParameterDoc("str", '``"x"``, of two lines.'),
    }
    assert plain("A picture::\n\n    a `b`\n\n::\n\n    c") == "A picture:\n\n    a b\n\n    c"


def test_options_are_those_that_a_scenario_may_write() -> None:
    (auto,) = known_as("zb-auto")
    told = {option.name: option for option in auto.options}
    assert told["time_limit"][1:4] == ("duration, as in 10us", False, "60s")
    assert (told["chunks"].default, told["checkpoint"].default) == (1, "never")
    assert "ranks" not in told
    assert [one.written for one in known_as("heft")] == [
        "policy: {linearize: heft}",
        "policy: {placement: heft}",
    ]
    assert "limit" in {option.name for option in known_as("bfc")[0].options}
    assert {option.name for option in known_as("zero-2")[0].options} >= {"ranks", "overlap"}
    hidden = {
        option.name for name in ("replay", "auto-tune") for one in known_as(name) for option in one.options
    }
    assert not hidden & {"plan", "evaluate"}, "only Python code can give them"


class Rated:
    """Leave a graph as it is.

    Parameters
    ----------
    bandwidth_bytes_per_s : int
    """

    def __init__(self, bandwidth_bytes_per_s: int = 0) -> None:
        self.bandwidth = bandwidth_bytes_per_s

    def apply(self, graph: Graph) -> Graph:
        """Return the graph."""
        return graph


def test_a_rate_is_written_with_its_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plugins._registered, ("sim.rewrites", "rated"), Rated)
    (rated,) = known_as("rated")
    assert [option.name for option in rated.options] == ["bandwidth"]
    text = "policy: {name: ready-queue, compile: [{name: rated, bandwidth: 4.8GB/s}]}"
    file = write(tmp_path, changed("policy: {name: ready-queue}", text))
    (step,) = load_scenario(file).case().decisions.compile
    assert step.rewrite.bandwidth == 4_800_000_000


def test_one_policy_is_told_with_options_and_source() -> None:
    told = sim("policies", "out-of-order").stdout
    assert "policy: {name: out-of-order, window: ...}" in told
    assert "synchronisation    str; default completion." in told
    assert "Tomasulo 1967" in told
    found = json.loads(sim("policies", "round-robin", "--json").stdout)
    assert [one["what"] for one in found] == ["placement", "stream assignment", "router"]


def undocumented(window, width: float = 1.5, *, later: Whatever = None): ...  # type: ignore # noqa: F821


def test_who_writes_no_docstring_is_told_by_the_signature() -> None:
    plugins.register("sim.policies", "mine", undocumented)
    (mine,) = known_as("mine")
    told = sim("policies", "mine").stdout
    plugins.unregister("sim.policies", "mine")
    assert [option[:5] for option in mine.options] == [
        ("window", "", True, None, ""),
        ("width", "float", False, 1.5, ""),
        ("later", "Whatever", False, None, ""),
    ]
    assert "\n  window    needed\n  width     float; default 1.5\n  later     Whatever\n" in told


THEIRS = '''"""A rule, after nobody."""
from policies.issue.program_order import OutOfOrder

class Window(OutOfOrder):
    """Mine."""

class First:
    """All on the first device."""
    def place(self, graph, machine, cost_ns): ...

class Nothing: ...
'''


def test_code_is_told_as_a_plugin_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "told_code.py").write_text(THEIRS)
    told = sim("policies", "told_code:Window", "--allow-code").stdout
    assert told.startswith(
        "told_code:Window (policy): Mine.\n\npolicy: {name: told_code:Window, window: ...}\n"
    )
    assert "rule and source (told_code:Window)\n\n  A rule, after nobody." in told
    assert (
        "\n\npolicy: {placement: told_code:First}"
        in sim("policies", "told_code:First", "--allow-code").stdout
    )
    for words, said in {
        ("told_code:Window",): "allow it with --allow-code",
        (
            "told_code:Nothing",
            "--allow-code",
        ): "'told_code:Nothing' decides nothing: it has none of next(), order()",
        ("told_code:Windo", "--allow-code"): "unknown class or function of 'told_code': 'Windo'",
        ("told_code.py:Window", "--allow-code"): "write the module without .py, told_code:Window",
    }.items():
        wrong = sim("policies", *words)
        assert (wrong.exit_code, said in wrong.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("policies", "out-of-ordr"),
            "unknown policy or other decision 'out-of-ordr'; did you mean 'out-of-order'",
        ),
        (("policies", "h100-sxm"), "'h100-sxm' is a device preset: sim devices h100-sxm"),
        (("policies", "pytorch-eager"), "'pytorch-eager' is a runtime: sim runtimes pytorch-eager"),
        (("runtimes", "dgx-h100"), "'dgx-h100' is a machine preset: sim devices dgx-h100"),
        (("runtimes", "tensorflw"), "unknown runtime 'tensorflw'; did you mean 'tensorflow'"),
        (("devices", "h100"), "unknown device or machine preset 'h100'; did you mean 'h100-sxm'"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest_or_where_it_is_told(
    arguments: tuple[str, ...], said: str
) -> None:
    result = sim(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(said)


def test_a_runtime_is_written_out_as_a_scenario_would() -> None:
    told = sim("runtimes", "onnxruntime").stdout
    written = yaml.safe_load(told.partition("written out:")[2].partition("and with")[0])
    runtime = plugins.lookup("sim.runtimes", "onnxruntime")
    assert written == {"policy": {key: value for key, value in runtime.items() if key != "allocator"}}


def test_a_preset_is_shown_with_its_sources() -> None:
    assert "# whitepaper" in sim("devices", "h100-sxm").stdout
    assert json.loads(sim("devices", "dgx-h100", "--json").stdout)["devices"]["gpu"]["count"] == 8
    plugins.register("sim.devices", "mine", {"kind": "gpu", "streams": 3})
    assert yaml.safe_load(sim("devices", "mine").stdout) == {"kind": "gpu", "streams": 3}
    plugins.unregister("sim.devices", "mine")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("policies out-o", "out-of-order"),
        ("run x.yaml --policy torchg", "torchgpipe"),
        ("new --template gpi", "gpipe"),
        ("run scenarios/examples/branches.yaml --set workload.ops.join.d", "workload.ops.join.duration="),
        ("sweep scenarios/examples/gpipe.yaml --vary compare.2.ch", "compare.2.chunks="),
    ],
)
def test_a_shell_completes_names(words: str, found: str) -> None:
    environment = {"COMP_WORDS": f"sim {words}", "COMP_CWORD": str(len(words.split()))}
    told = CliRunner().invoke(app, env={"_SIM_COMPLETE": "complete_bash", **environment}, prog_name="sim")
    assert told.stdout.split() == [found]


def test_a_policy_whose_verb_takes_something_else_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "from policies.issue.ready_queue import ReadyQueue\n\n\n"
        "class Odd(ReadyQueue):\n"
        "    def prepare(self, job, context): ...\n"
    )
    path = tmp_path / "s.yaml"
    path.write_text(
        "machine: {devices: {cpu: {kind: cpu}}}\nworkload: {ops: {a: {duration: 1us}}}\npolicy: odd:Odd\n"
    )
    done = sim("run", path, "--allow-code")
    assert (done.exit_code, "should have a method prepare(job)" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("job.device_of[0] = 0", "read-only"),
        ("job.machine = None", "a job is read-only: its machine cannot be set"),
        ("exit()", "SystemExit"),
        ("open('no file')", "FileNotFoundError"),
    ],
)
def test_a_mistake_of_a_policy_is_told_as_its_own(tmp_path: Path, line: str, message: str) -> None:
    """It cannot move ops, for example, nor end the command silently."""
    module = tmp_path.name  # one that is not imported yet
    (tmp_path / f"{module}.py").write_text(
        "from policies.issue.ready_queue import ReadyQueue\n\n\n"
        "class Mover(ReadyQueue):\n"
        "    def prepare(self, job):\n"
        "        super().prepare(job)\n"
        f"        {line}\n"
    )
    path = tmp_path / "s.yaml"
    path.write_text(
        "machine: {devices: {cpu: {kind: cpu}}}\nworkload: {ops: {a: {duration: 1us}}}\n"
        f"policy: {module}:Mover\n"
    )
    done = sim("run", path, "--allow-code")
    assert done.exit_code == 2
    assert message in done.stderr
    assert f"{module}.py:7" in done.stderr
