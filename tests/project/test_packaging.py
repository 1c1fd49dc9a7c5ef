"""What is built from the repository: a kernel, compiled where there is a compiler, and all files of data."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PACKAGES = ("sim", "devices", "policies", "scenarios")
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "graph_schedule_sim_pytest.py")

INNER = '''\
"""What the other one calls."""


def double(value):
    return value + value
'''
INNER_TYPES = """\
ctypedef long long i64
cpdef i64 double(i64 value) noexcept
"""
OUTER = '''\
"""A kernel small enough to be compiled in a test."""

from sim.kernel.inner import double


def total(n):
    sum = 0
    for value in range(n):
        sum += double(value)
    return sum
'''
OUTER_TYPES = """\
cimport cython
from sim.kernel.inner cimport double, i64
@cython.locals(sum=i64, value=i64)
cpdef i64 total(i64 n) noexcept
"""
USE = """\
import sys, warnings
from sim.base.compiled import load, state
warnings.simplefilter("always")
kernel = load("outer")
print(kernel.__name__, kernel.total(4), "sim.kernel.inner" in sys.modules)
import sim.kernel.outer
print(sim.kernel.outer.__file__.endswith("outer.py"), sim.kernel.outer.total(4))
print(state())
"""

pytestmark = pytest.mark.slow  # each builds the project

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("cc", "gcc", "clang")), reason="no C compiler on this machine"
)


@pytest.fixture
def checkout(root: Path, tmp_path: Path) -> Path:
    """Return a copy of what is packaged, with a small kernel instead of the real one."""
    for name in FILES:
        shutil.copy(root / name, tmp_path)
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd", "*.pxd")
        shutil.copytree(root / name, tmp_path / name, ignore=ignored)
    kernel = tmp_path / "sim" / "kernel"
    texts = {"inner.py": INNER, "inner.pxd": INNER_TYPES, "outer.py": OUTER, "outer.pxd": OUTER_TYPES}
    for name, text in texts.items():
        (kernel / name).write_text(text)
    return tmp_path


def python(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python there; -O0, because nothing here is about speed."""
    cleared = {name: value for name, value in os.environ.items() if name not in ("CC", "SIM_PURE")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**cleared, "CFLAGS": "-O0", "PYTHONDONTWRITEBYTECODE": "1", **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def data_and_code(folder: Path) -> set[str]:
    """Return every file of the packages, relative to `folder`."""
    found = [path for name in PACKAGES for path in (folder / name).rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix() for path in found} | {"graph_schedule_sim_pytest.py"}


def test_the_pure_wheel_holds_every_file_and_is_the_same_each_time(checkout: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    built = []
    for out in ("one", "two"):
        python(
            checkout, "setup.py", "-q", "bdist_wheel", "-d", out,
            SIM_PURE_WHEEL="1", SOURCE_DATE_EPOCH="1700000000",
        )  # fmt: skip
        built.append((checkout / out / "graph_schedule_sim-0.1.0-py3-none-any.whl").read_bytes())
    assert built[0] == built[1]
    with zipfile.ZipFile(next((checkout / "one").iterdir())) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == data_and_code(checkout)
    assert {"scenarios/examples/graphs/inception_v1.json.gz", "scenarios/templates/gpu.yaml"} <= names


@needs_compiler
def test_the_compiled_kernel_runs_beside_its_source_until_that_changes(checkout: Path) -> None:
    pytest.importorskip("Cython", minversion="3.1")
    assert "pure Python" not in python(checkout, "setup.py", "build_ext", "--inplace").stdout
    assert python(checkout, "-c", USE).stdout.splitlines() == [
        "sim.kernel._outer 12 False",  # it calls the other compiled one
        "True 12",
        "compiled",
    ]
    pure = python(checkout, "-c", USE, SIM_PURE="1")
    assert pure.stdout.splitlines() == [
        "sim.kernel.outer 12 True",
        "True 12",
        "pure Python (SIM_PURE is set)",
    ]
    assert not pure.stderr

    inner = checkout / "sim" / "kernel" / "inner.py"
    inner.write_text(INNER.replace("+", "*"))
    changed = python(checkout, "-c", USE)
    why = "its source has changed since it was compiled; install again, or run `make venv`"
    assert changed.stdout.splitlines() == ["sim.kernel.outer 14 True", "True 14", f"pure Python ({why})"]
    assert f"RuntimeWarning: the kernel runs as pure Python: {why}" in changed.stderr
    version = python(checkout, "-c", "from scenarios.cli import app; app()", "--version").stdout
    assert version.endswith(f"\nkernel: pure Python ({why})\n")


def test_without_a_compiler_the_build_says_so_once_and_ends_well(checkout: Path) -> None:
    pytest.importorskip("Cython", minversion="3.1")
    log = python(checkout, "setup.py", "build_ext", "--inplace", CC="false")
    assert log.stdout.count("so the kernel is installed as pure Python, which is slower") == 1
    assert python(checkout, "-c", USE).stdout.splitlines() == [
        "sim.kernel.outer 12 True",
        "True 12",
        "pure Python (not compiled where it was built)",
    ]
