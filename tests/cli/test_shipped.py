"""`sim new` and `sim list`: what ships can be found, copied, and run at once."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import urlopen

import pytest
from cli_runner import sim
from typer.testing import CliRunner, Result

from scenarios.cli import app
from scenarios.cli.verbs import names as verbs
from scenarios.run.load import load_scenario
from scenarios.shipped import fill_template, shipped_scenarios, write_scenario

TEMPLATES = [one for one in shipped_scenarios() if one.is_template]


@pytest.mark.filterwarnings("ignore:.* data-sheet rooflines")
@pytest.mark.parametrize("template", [one.name for one in TEMPLATES])
def test_a_template_is_written_with_its_files_and_runs_at_once(tmp_path: Path, template: str) -> None:
    file = tmp_path / "mine.yaml"
    made = sim("new", file, "--template", template)
    assert made.stdout.splitlines()[-1] == f"sim run {file}"
    text = file.read_text()
    schema = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert json.loads(urlopen(schema).read())["title"] == "A scenario of sim"
    assert "#?" not in text
    assert "sim compare mine.yaml" in text
    scenario = load_scenario(file)
    assert scenario.case().work.graph.n_edges > 0
    assert len(scenario.variants) == len(scenario.content.compare) > 1


def test_every_example_can_be_copied(tmp_path: Path) -> None:
    for one in shipped_scenarios():
        file = tmp_path / one.name / f"{one.name}.yaml"
        file.parent.mkdir()
        write_scenario(file, one.path.read_text(encoding="utf-8"))
        assert load_scenario(file).name == one.title
    # The graph is named by the scenario that this one extends.
    assert (tmp_path / "golden_schedules" / "graphs" / "inception_v1.json.gz").is_file()


def test_nothing_is_replaced_in_silence(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("precious")
    refused = sim("new", file, "--template", "gpu")
    assert (refused.exit_code, file.read_text()) == (2, "precious")
    assert refused.stderr == f"{file}: is there already; name another file, or replace it with --force\n"
    (tmp_path / "graphs").mkdir()
    (tmp_path / "graphs" / "inception_v1.json.gz").write_text("mine")
    assert sim("new", file, "--template", "gpu", "--force").stdout.startswith(f"wrote {file}\n\n")
    assert (tmp_path / "graphs" / "inception_v1.json.gz").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("new",), "give --template NAME: cluster, gpu, pipeline, trace, or an example of `sim list`"),
        (("new", "x.yaml", "--template", "gpuu"), "unknown template or example 'gpuu'; did you mean 'gpu'?"),
        (("new", "x.txt", "--template", "gpu"), "x.txt: a scenario ends in .yaml"),
        (("new", "no/x.yaml", "--template", "gpu"), "no/x.yaml: the directory no does not exist"),
        (("list", "fdsp2"), "unknown template or example 'fdsp2'; did you mean 'fsdp2'?"),
    ],
)
def test_wrong_usage_says_what_is_accepted(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = sim(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(said)
    assert not list(tmp_path.iterdir())


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, folder: Path, *answers: str) -> Result:
    """Run `sim new` where somebody answers its questions."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(verbs, "_on_terminal", lambda: True)
    return CliRunner().invoke(app, ["new", "mine.yaml"], input="".join(f"{one}\n" for one in answers))


def test_questions_are_asked_until_the_answer_makes_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.onnx").touch()
    answers = ["gpus", "gpu", "h200", "h200-sxm", "-1", "2", "mode.onnx", "../x.onnx", "model.onnx"]
    result = on_a_terminal(monkeypatch, tmp_path, *answers)
    said = result.output
    assert result.exit_code == 0, said
    for words in (
        "unknown template or example 'gpus'; did you mean 'gpu'?",
        "did you mean 'h200-sxm'?",
        "machine.devices.gpu0.streams: -1 ",
        f"there is no file 'mode.onnx' in {tmp_path}",
        "is outside the scenario's folder",
    ):
        assert words in said
    text = (tmp_path / "mine.yaml").read_text()
    assert "      preset: h200-sxm              # GPU" in text
    assert "      streams: 2                    # Streams" in text
    assert "graph: model.onnx" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.yaml", "model.onnx"]


def test_without_answers_a_template_is_as_it_is() -> None:
    for one in TEMPLATES:
        text = one.path.read_text(encoding="utf-8")
        plain = fill_template(text, lambda asked, default, check: check(default), Path("mine.yaml"))
        assert plain == text.replace("#?", "#")
        assert text.count("#?") >= 1


def test_the_list_tells_of_each_in_a_line_and_of_one_at_length() -> None:
    told = sim("list").stdout
    for one in shipped_scenarios():
        assert f"\n  {one.name} " in told
    assert "set_modules_to_forward_prefetch" in sim("list", "fsdp2").stdout
    found = json.loads(sim("list", "--json").stdout)
    assert {"name", "title", "description", "path", "is_template"} == set(found[0])


def test_a_schema_beside_the_scenario_is_the_one_it_names(tmp_path: Path) -> None:
    (tmp_path / "scenario.schema.json").touch()
    sim("new", tmp_path / "mine.yaml", "--template", "branches")
    first = (tmp_path / "mine.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=./scenario.schema.json"
