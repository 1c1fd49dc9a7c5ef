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


THREE_BLOCKS = """\
name: three blocks
machine:
  devices:
    gpu0: {kind: gpu, memory: 100MB}
workload:
  ops:
    embedding: {kind: gather, duration: 10us, output: 50MB}
    block1: {kind: matmul, duration: 10us, inputs: [embedding], output: 20MB}
    block2: {kind: matmul, duration: 10us, inputs: [embedding, block1], output: 20MB}
policy: {name: in-order}
"""
"""Most is in use from 20 to 30 us: 50 + 20 + 20 = 90 of 100 MB."""


TWO_RANKS = """\
machine:
  devices: {gpu: {kind: gpu, count: 2, cost: {fixed: 1us}}}
  collectives: {model: formula, bandwidth: 1GB/s}
workload:
  inputs: {x: 4kB}
  parameters: {w: 40kB, v: 40kB}
  ops:
    a: {kind: matmul, inputs: [x, w], output: 4kB, duration: 50us}
    b: {kind: matmul, inputs: [a, v], output: 4kB, duration: 50us}
policy: {name: in-order, compile: [training, {name: ddp, ranks: 2}]}
"""


def write(folder: Path, text: str = GOOD, name: str = "s.yaml") -> Path:
    """Write a scenario file and return its path."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def changed(old: str, new: str, text: str = GOOD) -> str:
    """Return `text` with one thing replaced; it must be there."""
    assert old in text
    return text.replace(old, new, 1)
