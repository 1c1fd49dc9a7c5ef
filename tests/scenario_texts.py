"""Scenarios for tests, as text: a good one, and ways to write files."""

from __future__ import annotations

from pathlib import Path

GOOD = """\
name: good
machine:
  devices:
    cpu0: {kind: cpu, cores: 2}
workload:
  ops:
    a: {duration: 10us, output: 4MB}
    b: {duration: 20us, inputs: [a]}
    c: {duration: 30us, inputs: [a]}
    d: {duration: 5us, inputs: [b, c]}
policy: {name: ready-queue}
expect:
  makespan: 45us
"""
"""A fork and a join: a 0-10, b 10-30 beside c 10-40, d 40-45 (us)."""


HEAD_OF_LINE = """\
name: head of line
machine: {devices: {cpu0: {kind: cpu, cores: 2}}}
workload:
  ops:
    a: {duration: 40us}
    b: {duration: 10us, inputs: [a]}
    c: {duration: 10us}
    d: {duration: 30us}
policy: {name: in-order}
"""
"""In order c and d wait for b: 80 us; with a window of 4 they do not: 50 us."""


def write(folder: Path, text: str = GOOD, name: str = "s.yaml") -> Path:
    """Write a scenario file and return its path."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def changed(old: str, new: str, text: str = GOOD) -> str:
    """Return `text` with one thing replaced; it must be there."""
    assert old in text
    return text.replace(old, new, 1)
