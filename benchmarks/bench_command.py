"""The whole command on a small scenario, as a ratio to ``python -c "import numpy"`` in turn with it.

``python benchmarks/bench_command.py`` prints the median ratio of CPU times. Run it where Python may write
bytecode: what it measures is an installed package, not the compiler.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

RUN = "from scenarios.cli import app; app()"
COMMANDS = {
    "sim run branches.yaml": [sys.executable, "-c", RUN, "run", "scenarios/examples/branches.yaml"],
    "sim --help": [sys.executable, "-c", RUN, "--help"],
}


def cpu_s(command: list[str]) -> float:
    """Return the CPU time of a process, user and system."""
    before = os.times()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    """Print a line a command."""
    numpy = [sys.executable, "-c", "import numpy"]
    for name, command in COMMANDS.items():
        cpu_s(command), cpu_s(numpy)  # bytecode and file cache
        pairs = [(cpu_s(command), cpu_s(numpy)) for _ in range(9)]
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"{name}: {ratio:.2f} x import numpy ({statistics.median(a for a, _ in pairs):.2f} s of CPU)")


if __name__ == "__main__":
    main()
