"""The command line in this process, for tests."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from scenarios.cli import app

COMPARE = """\
compare:
  - in-order
  - {label: one core, set: {machine.devices.cpu0.cores: 1}}
  - ready-queue
"""
"""Entries for the scenario of scenario_texts."""


def sim(*arguments: object) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])
