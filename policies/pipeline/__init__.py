"""Pipeline schedules as pure data: which rank runs what, in which order.

    generate("1f1b", ranks=4, micro_batches=8)     → Schedule: one program a rank, stages placed
    validate(schedule)                             → nothing, or the reason why it is no schedule
    evaluate(schedule, StageTimes(...))            → exact start and end of everything
    peak_activations(schedule)                     → activations alive on each rank
    closed_form("1f1b", ...)                       → what the textbook says
    picture(schedule)                              → rank × time, in text
    to_csv(schedule), parse_csv(text)              → torch.distributed.pipelining's form

Nothing here has a clock or a device, and nothing is simulated: the simulator issues the programs in
order and has to come to the same times as `evaluate`.
"""

from policies.pipeline.custom import parse_csv, picture, read_csv, to_csv, write_csv
from policies.pipeline.evaluate import (
    ClosedForm,
    Evaluation,
    Evaluator,
    StageActivations,
    StageTimes,
    closed_form,
    evaluate,
    peak_activations,
    transformer_activations,
)
from policies.pipeline.pipeline_schedule import (
    PHASES,
    Action,
    Overlap,
    Phase,
    Schedule,
    Slot,
    parse_action,
    parse_slot,
    with_recompute,
)
from policies.pipeline.registry import default_chunks, generate, options, schedules
from policies.pipeline.straight_schedules import Staleness, clock_cycles, clock_table, staleness
from policies.pipeline.validate import Dependencies, problems, validate

__all__ = [
    "PHASES",
    "Action",
    "ClosedForm",
    "Dependencies",
    "Evaluation",
    "Evaluator",
    "Overlap",
    "Phase",
    "Schedule",
    "Slot",
    "StageActivations",
    "StageTimes",
    "Staleness",
    "clock_cycles",
    "clock_table",
    "closed_form",
    "default_chunks",
    "evaluate",
    "generate",
    "options",
    "parse_action",
    "parse_csv",
    "parse_slot",
    "peak_activations",
    "picture",
    "problems",
    "read_csv",
    "schedules",
    "staleness",
    "to_csv",
    "transformer_activations",
    "validate",
    "with_recompute",
    "write_csv",
]
