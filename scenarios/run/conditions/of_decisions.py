"""Keys of who decides: what policies know, how durations vary, threads, sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scenarios.file.document import Loc
from scenarios.run.conditions.rule import Rule

if TYPE_CHECKING:
    from policies.issue.executors.tensorflow_executor import TensorFlowExecutor
    from scenarios.run.scenario import Case

__all__ = ["OF_DECISIONS"]


def _tensorflow(case: Case) -> TensorFlowExecutor | None:
    from policies.issue.executors.tensorflow_executor import TensorFlowExecutor

    policy = case.decisions.policy
    return policy if isinstance(policy, TensorFlowExecutor) else None


def _pools(case: Case, loc: Loc) -> bool:
    policy = _tensorflow(case)
    return policy is not None and bool(policy.sizes)


def _makes_intra_op_pool(case: Case, loc: Loc) -> bool:
    """Whether the pool has the size that the session at `loc` asks for."""
    asked = case.scenario.document.at(loc)
    return asked is not None and asked.value == case.intra_op_threads


OF_DECISIONS: Final[tuple[Rule, ...]] = (
    Rule(
        ("knowledge", "policy.knowledge", "compare.*.knowledge"),
        lambda case, loc: not case.scenario.content.workload.schedules(),
        "a pipeline's schedule is fixed before the run and asks for no duration; leave it out",
    ),
    Rule(
        ("estimate_error",),
        lambda case, loc: case.decisions.knowledge == "estimate",
        "policies know no estimates; say knowledge: estimate, or leave it out",
    ),
    Rule(
        ("noise.straggler_factor",),
        lambda case, loc: case.scenario.content.noise.straggler_probability > 0,  # type: ignore[union-attr]
        "no task is a straggler; give straggler_probability, or leave it out",
    ),
    Rule(
        ("noise.straggler_probability",),
        lambda case, loc: case.scenario.content.noise.straggler_factor != 1,  # type: ignore[union-attr]
        "a straggler takes no longer than others; give straggler_factor, or leave it out",
    ),
    Rule(
        ("policy.launch", "compare.*.launch"),
        lambda case, loc: any(not device.workers for device in case.work.machine.devices),
        "the machine has no device that ops are launched on; leave it out",
    ),
    Rule(
        tuple(
            f"workload.{at}ops.*.attributes.async"
            for at in ("", "functions.*.", "sessions.*.workload.", "sessions.*.workload.functions.*.")
        ),
        lambda case, loc: _tensorflow(case) is not None,
        "only TensorFlow's executor runs ops asynchronously; say runtime: tensorflow, or leave it out",
    ),
    Rule(
        ("policy.runs",),
        lambda case, loc: case.scenario.content.iterations > 1,
        "there is one run; say iterations: 2 or more, or leave it out",
    ),
    Rule(
        ("workload.processes",),
        lambda case, loc: not case.decisions.policy.one_process,
        "the sessions of this runtime are always of one process; leave it out",
    ),
    Rule(
        ("policy.intra_op_parallelism_threads", "compare.*.intra_op_parallelism_threads"),
        lambda case, loc: _tensorflow(case) is not None and any(d.workers for d in case.work.machine.devices),
        "it is the size of TensorFlow's intra-op pool, on a CPU; say runtime: tensorflow, give a CPU "
        "intra_op_pool, or leave it out",
    ),
    Rule(
        ("workload.sessions.*.intra_op_parallelism_threads",),
        lambda case, loc: _tensorflow(case) is not None and _makes_intra_op_pool(case, loc),
        "TensorFlow has one intra-op pool a process, of the size that its first session says, and other "
        "runtimes have none of that name; give it to the first session alone (a pool for each session, "
        "TF_OVERRIDE_GLOBAL_THREADPOOL, is not modelled)",
    ),
    Rule(
        ("workload.sessions.*.inter_op_thread_pool",),
        _pools,
        "the policy has one pool; give tensorflow-executor its session_inter_op_thread_pool, or leave it out",
    ),
)
