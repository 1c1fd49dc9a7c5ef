"""Recordings of ranks that do not belong together, or are damaged: one line each."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim
from cuda_programs import gpu, ran
from scenario_texts import write
from test_import_kineto_ranks import SCENARIO, TWO, record, together

from scenarios.importers import load_graph
from sim.base.errors import InputError


def change(folder: Path, name: str, **known: Any) -> None:
    """Change what a trace says of its job."""
    content = json.loads((folder / name).read_text())
    content["distributedInfo"] |= known
    (folder / name).write_text(json.dumps(content))


def other_kind(folder: Path) -> None:
    text = (folder / "rank1.json").read_text()
    (folder / "rank1.json").write_text(text.replace("AllReduce", "AllGather"))


def one_more(folder: Path) -> None:
    programs = [TWO[0], [*TWO[1], ("collective", 20)]]
    record(folder, [*together(TWO, [[10, 0]] * 2, [8])[:1], ran(programs[1], [10, 8, 8], ends=[120, 140])])


def other_step(folder: Path) -> None:
    """The third collective of rank 1 is 10 ms later than it can have been."""
    programs = [[("collective", 20)] * 3] * 2
    first = together(programs, [[0] * 3] * 2, [8] * 3)[0]
    later = ran(
        [("collective", 20)] * 2 + [("work", 10_000), ("collective", 20)], [0] * 3, ends=[12, 20, 10_050]
    )
    record(folder, [first, later])


def cut(folder: Path) -> None:
    path = folder / "rank1.json"
    packed = gzip.compress(path.read_bytes())
    path.write_bytes(packed[: len(packed) // 2])


def no_collective(folder: Path) -> None:
    record(folder, [ran([("launch", 7)], [10]) for _ in range(2)])


WRONG: Mapping[str, tuple[Callable[[Path], Any], str]] = {
    "twice": (lambda f: change(f, "rank1.json", rank=0), r"rank1\.json: is rank 0, as .*rank0\.json is"),
    "missing": (lambda f: (f / "rank0.json").unlink(), r"rank1\.json: is of a job of 2 ranks; missing: 0"),
    "another job": (
        lambda f: change(f, "rank1.json", world_size=4),
        r"rank1\.json: is rank 1 of 4, and .*rank0\.json is rank 0 of 2: they are of different jobs",
    ),
    "no rank": (
        lambda f: (f / "rank1.json").write_text(json.dumps({"traceEvents": [gpu("a", 1, 0, 1)]})),
        r"rank1\.json: does not say which rank of how many it is \(distributedInfo\)",
    ),
    "impossible rank": (
        lambda f: change(f, "rank1.json", rank=2),
        r"rank1\.json: distributedInfo: rank 2 of 2 is no rank of a job",
    ),
    "other collectives": (
        other_kind,
        r"rank1\.json: communicator 'nccl0': number 0 is all_gather on rank 1 and all_reduce on rank 0",
    ),
    "one more": (one_more, r"rank1\.json: communicator 'nccl0': rank 1 has 2 collectives and rank 0 has 1"),
    "another step": (
        other_step,
        r"rank0\.json: a collective of communicator 'nccl0' ended on rank 0 9\.984 ms before it began",
    ),
    "truncated": (cut, r"rank1\.json: a truncated or damaged gzip file"),
    "half a text": (
        lambda f: (f / "rank1.json").write_text((f / "rank1.json").read_text()[:300]),
        r"rank1\.json: not JSON",
    ),
    "no GPU": (
        lambda f: (f / "rank1.json").write_text('{"traceEvents": []}'),
        r"rank1\.json: no kernel, copy or fill of a GPU in the trace",
    ),
    "no collective": (
        no_collective,
        r"rank0\.json: has no collective of NCCL that it shares with another rank",
    ),
    "nothing": (lambda f: [each.unlink() for each in f.iterdir()], r"ranks: no trace in this folder"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_input_is_told_in_one_line(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    record(folder, together(TWO, [[10, 0], [10, 0]], [8]))
    spoil, says = WRONG[what]
    spoil(folder)
    done = sim("run", write(tmp_path, SCENARIO.replace("WHAT", "ranks")))
    assert done.exit_code == 2
    assert len(done.stderr.strip().splitlines()) == 1
    with pytest.raises(InputError, match=says):
        load_graph(folder, format="kineto")


def test_a_scenario_names_a_folder_or_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    record(folder, together(TWO, [[10, 0], [10, 0]], [8]))
    for what in ("ranks", "[ranks/rank1.json, ranks/rank0.json]"):
        done = sim("run", write(tmp_path, SCENARIO.replace("WHAT", what)), "--json")
        assert done.exit_code == 0, done.stderr
        assert json.loads(done.stdout)["makespan_ns"] == 116_000
    (folder / "rank1.json").unlink()
    (folder / "rank1.json").symlink_to(tmp_path.parent)
    done = sim("run", write(tmp_path, SCENARIO.replace("WHAT", "ranks")))
    assert (done.exit_code, "is outside the scenario's folder" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("3", r"s\.yaml:5:20: workload\.kineto: should be text, not 3"),
        ("[a.json, 3]", r"s\.yaml:5:29: workload\.kineto\.1: should be text, not 3"),
        ("[/a.json]", r"s\.yaml:5:21: workload\.kineto\.0: '/a\.json' is an absolute path"),
        ("[]", r"s\.yaml:5:20: workload\.kineto: no trace is given"),
        ("nowhere", r"s\.yaml:5:20: workload\.kineto: .*nowhere: no such file"),
    ],
)
def test_a_wrong_name_is_told_in_one_line(tmp_path: Path, what: str, says: str) -> None:
    done = sim("run", write(tmp_path, SCENARIO.replace("WHAT", what)))
    assert done.exit_code == 2
    [line] = done.stderr.strip().splitlines()
    assert re.search(says, line)
