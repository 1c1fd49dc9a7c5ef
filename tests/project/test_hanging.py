"""A test that hangs is ended, with where it hung."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_test_that_hangs_ends_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "def test_fine(): pass\ndef test_for_ever():\n    import time; time.sleep(99)\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "hanging",
            "-p",
            "no:cacheprovider",
            "-c",
            os.devnull,
            tmp_path,
        ],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "TEST_TIMEOUT_S": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "in test_for_ever" in done.stderr
