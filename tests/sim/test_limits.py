"""Counts have stated maxima: a slip of the finger is told at once, not simulated for hours."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runner import sim
from scenario_texts import GOOD, changed, write

from devices.describe.field_types import TYPES
from devices.describe.fields import (
    DEVICE_FIELDS,
    HOST_FIELDS,
    LINK_FIELDS,
    MACHINE_FIELDS,
    Field,
)

PIPELINE = "workload: {pipeline: {ranks: 4, micro_batches: 8, forward: 1ms, backward: 2ms}}\npolicy: 1f1b\n"
BRANCHY = (
    "machine: {devices: {cpu0: {kind: cpu}}}\nworkload: {build: {model: branchy, blocks: 1, layers: 2}}\n"
)

TOO_MANY = {
    "cores": (changed("cores: 2", "cores: 1000000000"), "cpu0.cores: 1,000,000,000 is more than the 65,536"),
    "streams": (changed("cpu, cores: 2", "gpu, streams: 65537"), "streams: 65,537 is more than the 65,536"),
    "count": (changed("cores: 2", "cores: 2, count: 20000"), "count: 20,000 is more than the 16,384"),
    "both": (changed("cores: 2", "cores: 1000, count: 2000"), "2,000,000 cores and streams are more than"),
    "iterations": (GOOD + "iterations: 50000000\n", "iterations: 50,000,000 iterations of 4 ops are"),
    "micro-batches": (PIPELINE.replace("8,", "9999999,"), "less than or equal to 1000000"),
    "slots": (PIPELINE.replace("8,", "999999,").replace("4,", "99,"), "98,999,901 forwards; there may be"),
    "ops": (
        BRANCHY.replace("1,", "1000000,").replace("layers: 2", "layers: 1000000"),
        "ops are more than the",
    ),
}


@pytest.mark.parametrize(("text", "says"), TOO_MANY.values(), ids=TOO_MANY)
def test_too_many_is_refused(tmp_path: Path, text: str, says: str) -> None:
    result = sim("run", write(tmp_path, text))
    assert result.exit_code == 2
    assert says in result.stderr, result.stderr


def test_a_schedule_by_itself_has_the_same_limit() -> None:
    sizes = ("--ranks", 100000, "--micro-batches", 100000)
    result = sim("schedule", "1f1b", *sizes, "--format", "torch-csv")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "10,000,000,000 forwards; there may be 10,000,000" in result.stderr
    assert "a picture of 100,000 ticks or more cannot be read" in sim("schedule", "1f1b", *sizes).stderr


@pytest.mark.parametrize(
    "field",
    [*DEVICE_FIELDS.values(), *LINK_FIELDS.values(), *HOST_FIELDS.values(), *MACHINE_FIELDS.values()],
    ids=lambda field: field.name,
)
def test_the_example_of_a_key_can_be_read(field: Field) -> None:
    first = field.shown.partition(", or ")[0].partition(" or ")[0].partition(" | ")[0]
    if field.type in (
        "mapping",
        "anything",
        "curve",
        "counts by name",
        "power",
        "graph launch",
        "matrix unit",
        "vector unit",
        "sizes",
        "words",
        "dtypes",
        "flag",
    ):
        return  # written in YAML, which is read elsewhere
    value: object = first
    if (
        field.type in ("positive count", "count or unlimited", "count or share", "streams")
        or "number of" in field.type
    ):
        value = int(first)
    elif field.type == "factor":
        value = float(first)
    TYPES[field.type].read(value)


def test_keys_of_a_device_are_shown_with_their_own_examples() -> None:
    shown = sim("devices").stdout
    assert "kind: gpu " in shown
    assert "preset: h200-sxm " in shown
    assert "sharing: none | cores | time | sm | sm+dram " in shown
    assert "fp32 " not in shown.replace("default fp32", "")
