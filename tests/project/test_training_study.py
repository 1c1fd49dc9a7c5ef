"""The program that judges published training steps: what it keeps, and what it refuses."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import pytest

import studies.training.__main__ as program
from sim.base.errors import InputError
from studies.training import published
from studies.training.judge import SIMUMAX_FILE, STEPS_FILE, Judge, Judged, Judgement
from studies.training.published import RECIPES_FILE, Published, read_published

COLUMNS = (
    "id,source,group,model,params_b,layers,hidden,heads,seq,gpu,gpus,precision,tp,pp,vpp,cp,ep,dp,sharding,mbs,gbs,"
    "micro_batches,recompute,step_ms,tokens_per_s_per_gpu,model_tflops_per_gpu,peer_prediction_ms,note"
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder with one small row of each of two sources, and nothing of the others."""
    sizes = {
        "model": "GPT",
        "layers": 2,
        "hidden": 64,
        "heads": 4,
        "seq": 64,
        "gpu": "A100",
        "gpus": 1,
        "mbs": 1,
        "gbs": 1,
    }
    sources = ("vtrain-a100-multi", "megatron-2104.04473-T1")
    rows = [
        {"id": source, "source": source, "group": f"{source}|x", "step_ms": 5, **sizes} for source in sources
    ]
    (tmp_path / "cluster").mkdir()
    with gzip.open(tmp_path / STEPS_FILE, "wt", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS.split(","), restval="")
        writer.writeheader()
        writer.writerows(rows)
    (tmp_path / SIMUMAX_FILE).write_bytes(b"")
    (tmp_path / RECIPES_FILE).write_text("id\n", encoding="utf-8")
    return tmp_path


class Fake:
    """Sources that are judged at once, and counted."""

    def __init__(self, rows: list[Published]) -> None:
        self.rows, self.refused, self.judged = rows, [("mosaic", "prints no layout")], list[str]()

    def of(self, name: str) -> Judgement:
        self.judged.append(name)
        row = self.rows[len(name) % 2]
        return Judgement(name.title(), f"how {name}", (Judged(row, 5.5, 4.0, 6.0),), f"beside {name}")


@pytest.fixture
def fake(data: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake(read_published(data / STEPS_FILE)[0])
    monkeypatch.setattr(
        program, "SOURCES", {name: lambda _, name=name: made.of(name) for name in ("vtrain", "megatron")}
    )
    monkeypatch.setattr(program, "Judge", lambda _: made)
    return made


def test_the_page_has_all_sources(data: Path, fake: Fake, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    program.main(data, page)
    assert fake.judged == ["vtrain", "megatron"]
    assert "| Vtrain | 1 | 10.0 % |" in page.read_text()
    assert "beside megatron." in page.read_text()
    assert "| mosaic | 1 | prints no layout |" in page.read_text()


def test_one_source_alone(data: Path, fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    program.main(data, only=["megatron"])
    told = capsys.readouterr()
    assert fake.judged == ["megatron"]
    assert "| Megatron | 1 | 10.0 % |" in told.out
    assert "Vtrain" not in told.out
    assert told.err.startswith("megatron: 1 rows, ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"file": Path("page.md"), "only": ["vtrain"]}, "a page has all sources; leave it out with --only"),
        ({"only": ["vtrian"]}, "unknown source 'vtrian'; did you mean 'vtrain'"),
    ],
)
def test_wrong_use(data: Path, fake: Fake, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        program.main(**{"data": data, **arguments})
    assert not fake.judged


def test_every_source_is_a_method_of_the_judge() -> None:
    assert all(getattr(Judge, name) is judged for name, judged in program.SOURCES.items())


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("deepseekv2", "deepseek-v2"),
        ("DeepSeekV3", "deepseek-v3"),
        ("DeepSeekV3 (w/ MTP)", "deepseek-v3"),
        ("Llama-3.1-70B", "llama3-70b"),
        ("LLAMA3.1_405B", "llama3-405b"),
        ("llama3-70b", "llama3-70b"),
        ("GPT OSS 120B", "gpt-oss-120b"),
        ("MPT-760m", "mpt-760m"),
    ],
)
def test_models_are_known_by_the_names_of_their_sources(name: str, known: str) -> None:
    row = dict.fromkeys(COLUMNS.split(","), "") | {"source": "simumax-b200", "model": name, "seq": "4096"}
    assert published._named(row) == published.Architecture(**published.MODELS[known])


def test_a_model_with_more_in_brackets_is_another_one() -> None:
    row = dict.fromkeys(COLUMNS.split(","), "") | {"model": "Qwen3_30B_a3B (tokendrop)"}
    with pytest.raises(published.Undescribed, match="drops tokens"):
        published._named(row)
