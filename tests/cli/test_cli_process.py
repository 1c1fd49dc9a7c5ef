"""The command as a process: start-up, same bytes again, pipes, signs of life."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import pytest
from cli_runner import COMPARE, sim
from scenario_texts import GOOD, changed, write

from scenarios.cli import running
from scenarios.cli.output import place_of_other_code
from scenarios.cli.running import progress


def process(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    code = "from scenarios.cli import app; app()"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


def test_same_seed_same_bytes_whatever_the_hash_seed(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + COMPARE)
    kept = []
    for where, command in (("here", sim), ("there", partial(process, PYTHONHASHSEED="1"))):
        ops, trace = tmp_path / f"{where}.csv", tmp_path / f"{where}.json.gz"
        done = command("compare", path, "--json", "--ops", ops, "--trace", trace)
        kept.append((done.stdout, ops.read_bytes(), trace.read_bytes()))
    assert kept[0] == kept[1]


def test_a_reader_that_leaves_early_is_no_traceback(tmp_path: Path) -> None:
    code = "from scenarios.cli import app; app()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "policies"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == ""


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_a_user_s_code_prints_is_no_part_of_the_json(tmp_path: Path, jobs: int) -> None:
    (tmp_path / "prints.py").write_text(
        "from policies.issue.ready_queue import ReadyQueue\nprint('imported')\n"
        "class Prints(ReadyQueue):\n    def ready(self, task):\n        print('ready')\n"
        "        super().ready(task)\n"
    )
    path = write(tmp_path, changed("ready-queue", "'prints:Prints'"))
    done = process("sweep", path, "--vary", "seed=1,2", "--jobs", jobs, "--allow-code", "--json")
    assert [row["error"] for row in json.loads(done.stdout)] == [None, None]
    # Two processes that do not buffer (PYTHONUNBUFFERED) may put a word between another one and its newline.
    assert set(re.findall("imported|ready|.", done.stderr)) == {"imported", "ready"}


def test_a_library_behind_a_link_is_no_code_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "lib" / "heapq.py"
    file.parent.symlink_to(sysconfig.get_path("stdlib"))
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("1 / 0", file, "exec"), {"__name__": "heapq"})
    assert place_of_other_code(caught.value.with_traceback(caught.tb.tb_next)) is None


def test_progress_appears_only_when_it_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("at once", after_s=5):
        pass
    told = ""
    with progress("taking long", after_s=0.01):
        while not told:  # on a busy machine it is later
            time.sleep(0.01)
            told = capsys.readouterr().err
    captured = capsys.readouterr()
    assert captured.out == ""
    assert told + captured.err == "taking long ...\n"


def test_a_run_says_what_it_is_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def tell(what: str) -> AbstractContextManager[None]:
        told.append(what)
        return nullcontext()

    monkeypatch.setattr(running, "progress", tell)
    assert sim("run", write(tmp_path, GOOD), "--ops", tmp_path / "ops.csv").exit_code == 0
    assert told == ["reading good", "simulating ready-queue", "writing files"]
