"""The user's own order (``custom``): a table of actions, one row a rank.

    0F0,0F1,,,0B0,0B1          rank 0 holds stage 0, because its row has the actions of stage 0
    ,1F0,1B0,1F1,1B1           rank 1 holds stage 1; empty cells are idle ticks and mean nothing

The form is torch's (`policies.pipeline.schedule_text`). Sizes follow from the table: as many ranks as
rows, as many stages and micro-batches as the largest numbers say. A wrong order is refused with the reason
(`policies.pipeline.validate`).
"""

from __future__ import annotations

from policies.pipeline.action import Action
from policies.pipeline.pipeline_schedule import Schedule
from policies.pipeline.schedule_text import Rows, parse_csv, read_csv
from policies.pipeline.validate import validate
from sim.base.errors import InputError


def custom(
    ranks: int | None = None,
    micro_batches: int | None = None,
    chunks: int | None = None,
    *,
    file: str | None = None,
    text: str | None = None,
    replicas: bool = False,
) -> Schedule:
    r"""Read a schedule from a file or a text.

    Parameters
    ----------
    ranks, micro_batches, chunks : int, optional
        What the workload expects; a table of other sizes is refused.
    file, text : str
        Where the table is, or the table itself: exactly one of them.
    replicas : bool
        Allow a stage on several ranks, each with its own micro-batches. By default this is taken
        for a mistake.

    Returns
    -------
    Schedule
        Valid: complete, and free of deadlock.

    Raises
    ------
    InputError
        There is no table or a wrong one; the message lists what is missing, doubled or impossible.
    StuckError
        The order deadlocks; the message says which rank waits for what.

    Examples
    --------
    >>> custom(text="0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1").stage_to_rank
    (0, 1)
    """
    if (file is None) == (text is None):
        raise InputError("a custom schedule needs a table of actions: give either file or text")
    rows = read_csv(file) if file is not None else parse_csv(text or "")
    schedule = from_rows(rows, replicas=replicas)
    for what, wanted, found in (
        ("ranks", ranks, schedule.ranks),
        ("micro-batches", micro_batches, schedule.micro_batches),
        ("chunks", chunks, schedule.chunks),
    ):
        if wanted is not None and wanted != found:
            raise InputError(f"the custom order has {found} {what}, and {wanted} are asked for")
    validate(schedule)
    return schedule


def from_rows(rows: Rows, *, replicas: bool = False) -> Schedule:
    """Make a schedule of rows: infer sizes and where the stages live.

    Raises
    ------
    InputError
        No row has an action, or a stage is on several ranks and `replicas` is not set.
    """
    slots = [(rank, slot) for rank, program in enumerate(rows.programs) for slot in program]
    actions = [(rank, a) for rank, slot in slots for a in slot.parts]
    if not actions:
        raise InputError("the custom order has no actions; a row is one rank's program, such as 0F0,0B0")
    stages = 1 + max(a.stage for _, a in actions)
    micro_batches = 1 + max(a.micro_batch for _, a in actions)
    ranks = len(rows.programs)
    home: dict[tuple[int, int], int] = {}
    first: dict[int, tuple[int, Action]] = {}
    for rank, a in actions:
        home.setdefault((a.stage, a.micro_batch), rank)
        other, example = first.setdefault(a.stage, (rank, a))
        if other != rank and not replicas:
            raise InputError(
                f"stage {a.stage} is on rank {other} ({example}) and on rank {rank} ({a}); "
                f"a stage lives on one rank. If both ranks hold a copy of it, say replicas: true"
            )
    fallback = {stage: rank for stage, (rank, _) in first.items()}
    columns = [
        tuple(home.get((s, k), fallback.get(s, 0)) for s in range(stages)) for k in range(micro_batches)
    ]
    placements = tuple(dict.fromkeys(columns))
    number = {placement: i for i, placement in enumerate(placements)}
    return Schedule(
        name="custom",
        ranks=ranks,
        stages=stages,
        chunks=max(1, max(placements[0].count(rank) for rank in range(ranks))),
        micro_batches=micro_batches,
        programs=rows.programs,
        placements=placements,
        replica_of=tuple(number[column] for column in columns),
        meta={"communication_skipped": rows.communication_skipped},
    )
