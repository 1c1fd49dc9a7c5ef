"""What a notebook may rely on: the public names of `sim`, and that importing it is cheap."""

from __future__ import annotations

import subprocess
import sys

import sim


def test_public_names() -> None:
    assert sorted(sim.__all__) == [
        "Device",
        "Graph",
        "GraphBuilder",
        "Host",
        "Issuer",
        "Job",
        "Link",
        "Machine",
        "OutOfMemoryError",
        "Plan",
        "Policy",
        "Task",
        "Trace",
        "simulate",
    ]
    for name in sim.__all__:
        assert getattr(sim, name).__name__ == name


def test_policy_and_plan_need_neither_simpy_nor_pandas() -> None:
    """The measuring step of validation runs where only numpy and torch are installed."""
    code = (
        "import sys; from sim import GraphBuilder, Issuer, Plan, Policy, Task;"
        "import policies.issue.ready_queue;"
        "print(*sorted({'simpy', 'pandas', 'pydantic', 'typer', 'matplotlib'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""
