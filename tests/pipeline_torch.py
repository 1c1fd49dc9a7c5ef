"""What torch.distributed.pipelining runs, asked of torch itself, without processes or devices.

``python tests/pipeline_torch.py`` writes ``tests/data/pipeline_torch_orders.json``, with which the
orders are compared where torch is not installed:

* ``programs``: a few small schedules in full, one text a rank;
* ``digests``: for every size of the grid, the digest of the order, or ``-`` where torch refuses it.

The schedules over several stages compute their table when they are constructed, from nothing but
sizes, so a stage that only knows its number is enough. GPipe and 1F1B decide while running: they are
run on a stage that writes down what it is asked to compute.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
import warnings
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "data" / "pipeline_torch_orders.json"

RANKS = (2, 4, 8)
CHUNKS = (1, 2, 3, 4)
MICRO_BATCHES = range(1, 33)

SINGLE = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"}
MULTI = {
    "looped-bfs": "ScheduleLoopedBFS",
    "interleaved-1f1b": "ScheduleInterleaved1F1B",
    "interleaved-zb": "ScheduleInterleavedZeroBubble",
    "zb-v": "ScheduleZBVZeroBubble",
    "dualpipe-v": "ScheduleDualPipeV",
}
NAMES = (*SINGLE, *MULTI)

Order = tuple[tuple[str, ...], ...]
"""The actions of each rank."""


def sizes(name: str) -> list[tuple[int, int, int]]:
    """Return the grid of (ranks, chunks, micro-batches) of one schedule."""
    chunks = (1,) if name in SINGLE else CHUNKS
    return list(itertools.product(RANKS, chunks, MICRO_BATCHES))


def digest(order: Order) -> str:
    """Shorten an order."""
    text = "\n".join(" ".join(program) for program in order)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def torch_schedules() -> Any:
    """Import torch's module, whatever it has to warn of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.distributed.pipelining import schedules

    return schedules


def torch_order(module: Any, name: str, ranks: int, chunks: int, micro_batches: int) -> Order | None:
    """Return the order torch runs, or None where it refuses the sizes."""
    try:
        if name in SINGLE:
            make = getattr(module, SINGLE[name])
            return tuple(_run(make, rank, ranks, micro_batches) for rank in range(ranks))
        stages = [_Stage(rank, ranks * chunks, ranks) for rank in range(0, ranks * chunks, ranks)]
        made = getattr(module, MULTI[name])(stages, micro_batches, loss_fn=lambda *_: None)
    except ValueError:
        return None
    table = made.pipeline_order
    return tuple(tuple(str(a) for a in table[rank] if a is not None) for rank in range(ranks))


def _run(make: Any, rank: int, ranks: int, micro_batches: int) -> tuple[str, ...]:
    stage = _Stage(rank, ranks, ranks)
    schedule = make(stage, micro_batches)
    schedule._initialize_stage = lambda *_: None
    schedule._step_microbatches()
    return tuple(stage.ran)


class _Stage:
    """A stage that knows its number, has nothing to send, and writes down what it computes."""

    is_first = is_last = False
    has_backward = True
    submod = None

    def __init__(self, stage: int, stages: int, ranks: int) -> None:
        self.stage_index, self.num_stages, self.group_size, self.group_rank = (
            stage,
            stages,
            ranks,
            stage % ranks,
        )
        self.ran: list[str] = []

    def forward_one_chunk(self, micro_batch: int, *_: Any, **__: Any) -> None:
        self.ran.append(f"{self.stage_index}F{micro_batch}")

    def backward_one_chunk(self, micro_batch: int, *_: Any, **__: Any) -> None:
        self.ran.append(f"{self.stage_index}B{micro_batch}")

    def _nothing(self, *_: Any) -> list[Any]:
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = _nothing
    perform_reduce_grad = _nothing


def main() -> None:
    """Write the golden file."""
    module = torch_schedules()
    version = sys.modules["torch"].__version__
    small = [(2, 1, 4), (4, 1, 6), (2, 2, 4), (4, 2, 8), (2, 3, 5), (2, 3, 6)]
    programs: dict[str, dict[str, list[str]]] = {}
    digests: dict[str, dict[str, str]] = {}
    for name in NAMES:
        found = {size: torch_order(module, name, *size) for size in sizes(name)}
        chosen = {size: found[size] for size in small if found.get(size) is not None}
        programs[name] = {
            ",".join(map(str, size)): [" ".join(program) for program in order or ()]
            for size, order in chosen.items()
        }
        rows: dict[str, list[str]] = {}
        for (ranks, chunks, _), order in found.items():
            rows.setdefault(f"{ranks},{chunks}", []).append(digest(order) if order is not None else "-")
        digests[name] = {key: " ".join(row) for key, row in rows.items()}
    golden = {
        "source": f"torch {version}, torch.distributed.pipelining.schedules, by tests/pipeline_torch.py",
        "keys": "programs: ranks,chunks,micro-batches; digests: ranks,chunks, micro-batches 1, 2, ...",
        "programs": programs,
        "digests": digests,
    }
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
