"""What a user's own classes hand over: a wrong answer is an error that says so, never a crash."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import sim

from devices.memory.allocator import Allocator
from devices.memory.device_memory import LIVE, Block
from devices.memory.registry import MemorySpec
from devices.memory.run_memory import tensor_memory
from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Link, Machine, Policy, simulate
from sim.base.errors import InfeasibleError, InputError
from sim.job.build_job import make_job
from sim.job.job import Placement
from sim.kernel.run import is_compiled
from sim.policy import Order, order_of

WRONG = [[-1, -1], [2, 0], [0.9, 0], [True, 0], [0], [0, 0, 0], None, "00", [1 << 70, 0], np.zeros((2, 1))]


def _run(policy: Policy | None = None, **options: Any) -> None:
    b = GraphBuilder("two")
    for name in "ab":
        b.op(name, duration_ns=10)
    simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), policy or ReadyQueue(), **options)


@pytest.mark.parametrize("engine", ["auto", "simpy"])
def test_a_machine_without_a_network_is_told_where_to_find_one(engine: str) -> None:
    b = GraphBuilder("two")
    b.op("a", duration_ns=10, outputs=8, device="x")
    b.op("b", duration_ns=10, inputs=["a"], device="y")
    machine = Machine((Device("x"), Device("y")), (Link("l", "x", "y"),))
    with pytest.raises(InfeasibleError, match=r"network=devices\.network\.make_network"):
        simulate(b.build(), machine, ReadyQueue(), engine=engine)


def test_a_column_of_the_graph_is_not_taken_for_an_attribute_that_no_op_has() -> None:
    b = GraphBuilder("one")
    b.op("a", flops=5, attributes={"cores": 2})
    graph = b.build()
    assert [graph.column(name).tolist() for name in ("cores", "priority")] == [[2], [0]]
    with pytest.raises(InputError, match=r"no op has an attribute .flops.: .* own column, graph\.flops"):
        graph.column("flops")


@pytest.mark.parametrize("answer", WRONG, ids=repr)
def test_a_wrong_placement_is_named(answer: Any) -> None:
    class Mine(Placement):
        def place(self, graph: Any, machine: Any, cost_ns: Any) -> Any:
            return answer

    with pytest.raises(InputError, match=r"Mine\.place returned .*should be"):
        _run(placement=Mine())


@pytest.mark.parametrize("soft", [False, True])
def test_a_placement_keeps_pins_unless_it_is_soft(soft: bool) -> None:
    class Mine(Placement):
        def place(self, graph: Any, machine: Any, cost_ns: Any) -> Any:
            return [0, 0]

    mine = Mine()
    mine.soft = soft
    b = GraphBuilder("two")
    b.op("a", duration_ns=10)
    b.op("b", duration_ns=10, device="gpu1")
    machine = Machine((Device("gpu0"), Device("gpu1")))
    with nullcontext() if soft else pytest.raises(InputError, match="op 'b' on gpu0; it is pinned to 'gpu1'"):
        assert simulate(b.build(), machine, ReadyQueue(), placement=mine).makespan_ns == 20


@pytest.mark.parametrize("answer", WRONG[:1] + WRONG[2:], ids=repr)
def test_a_wrong_stream_is_named(answer: Any) -> None:
    class Mine:
        def assign(self, job: Any) -> Any:
            return answer

    with pytest.raises(InputError, match=r"Mine\.assign returned .*should be"):
        _run(streams=Mine())


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("streams", "have a method assign(job); list has none"),
        ("linearize", "have a method order(job); list has none"),
        ("memory", "be callable with (job, context); found list [0, 0]"),
        ("noise", "be a Noise, not [0, 0]"),
        ("faults", "be a Faults, not [0, 0]"),
    ],
)
def test_numbers_instead_of_who_decides_them_are_refused(key: str, wanted: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(f'{key} should {wanted}')}$"):
        _run(**{key: [0, 0]})


@pytest.mark.parametrize(
    "order",
    [
        "fifo",
        Order("fifp"),  # type: ignore[arg-type]
        Order("place", programs=[np.array([0, -1])]),
        Order("place", programs=[np.array([0, 2])]),
        Order("place", programs=[np.array([0.5, 1])]),
        Order("place"),
        Order("place", programs=[np.array([0, 1])]),
        Order("place", programs=[np.array([0]), np.array([])]),
        Order("place", programs=[np.array([0, 0]), np.array([1])]),
        Order("place", programs=[np.array([0]), np.array([1])]),
        Order("place", programs=[np.array([0]), np.array([1])], per="issuer"),
        Order("place", programs=[np.array([0, 1]), np.array([])], window=0),
        Order("fifo", in_flight=0.5),  # type: ignore[arg-type]
        Order("fifo", per="issuer"),
        Order("keep", pool=np.array([0, 0])),
        Order("keep", pool=np.array([1, 0]), pool_of_issuer=np.array([1, 1])),
        Order("steal", pool=np.array([0, 0]), pool_of_issuer=np.array([0, 1])),
        Order("steal", cheap=np.zeros(2, np.int64), pool=np.array([0, 9]), pool_of_issuer=np.array([0, 1])),
    ],
    ids=repr,
)
def test_a_wrong_order_is_named(order: Any) -> None:
    class Mine(ReadyQueue):
        def as_data(self, job: Any) -> Any:
            return order

    b = GraphBuilder("two")
    for name in "ab":
        b.op(name, duration_ns=10)
    job = make_job(b.build(), Machine((Device("gpu0"), Device("gpu1"))))
    with pytest.raises(InputError, match=r"Mine\.as_data"):
        order_of(Mine(), job)


def test_the_error_names_the_op() -> None:
    class Mine(Placement):
        def place(self, graph: Any, machine: Any, cost_ns: Any) -> Any:
            return [0, -1]

    with pytest.raises(InputError, match="returned -1 for op 'b', should be a whole number from 0 to 1"):
        _run(placement=Mine())


def test_a_stream_that_does_not_exist_is_named() -> None:
    class Mine:
        def assign(self, job: Any) -> Any:
            return [0, 1]

    with pytest.raises(InputError, match=r"Mine\.assign returned 1 for op 'b', should be a whole"):
        _run(streams=Mine())


class _Queue(Policy):
    """A queue of its own, so that it is asked task by task."""

    def prepare(self, job: Any) -> None:
        self.tasks: list[Any] = []

    def ready(self, task: Any) -> None:
        self.tasks.append(task)

    def next(self, issuer: Any) -> Any:
        return self.tasks.pop(0) if self.tasks else None


@pytest.mark.parametrize(
    ("key", "value"), [*(("op", op) for op in (9, -1, 1, None, "a")), ("group", -1), ("group", None)]
)
def test_a_task_that_a_policy_changes_is_named(key: str, value: Any) -> None:
    class Mine(_Queue):
        def ready(self, task: Any) -> None:
            setattr(task, key, value)
            super().ready(task)

    b = GraphBuilder("two")
    for name in "ab":
        b.op(name, duration_ns=10)
    with pytest.raises(InputError, match=r"Mine gave gpu0/host <Task op=.* iteration=0> with id 0, which"):
        simulate(b.build(), Machine((Device("gpu0"),)), Mine())


@pytest.mark.parametrize(
    ("attribute", "value", "told"),
    [
        ("synchronisation", "isue", "synchronisation 'isue'; did you mean 'issue'"),
        ("synchronisation", None, "synchronisation None"),
        ("scope", "grup", "scope 'grup'; did you mean 'group'"),
        ("on_failure", "skp", "on_failure 'skp'; did you mean 'skip'"),
        ("asks_in_turn", "yes", "asks_in_turn 'yes'"),
        ("next", None, "next None, which should be a method"),
    ],
)
def test_a_wrong_attribute_of_a_policy_is_named(attribute: str, value: Any, told: str) -> None:
    mine = type("Mine", (_Queue,), {attribute: value})
    b = GraphBuilder("one")
    b.op("a", duration_ns=10)
    with pytest.raises(InputError, match=f"policy Mine has {told}"):
        simulate(b.build(), Machine((Device("gpu0"),)), mine())


@pytest.mark.parametrize("answer", [None, 5, {9}, {-1}, {0.5}, [0]], ids=repr)
def test_wrong_asynchronous_ops_are_named(answer: Any) -> None:
    class Mine(_Queue):
        def asynchronous_ops(self, job: Any) -> Any:
            return answer

    b = GraphBuilder("one")
    b.op("a", duration_ns=10)
    with pytest.raises(InputError, match=r"Mine\.asynchronous_ops returned .*should be"):
        simulate(b.build(), Machine((Device("cpu0", "cpu", workers=1),)), Mine())


@pytest.mark.parametrize("answer", ["5us", 5, [0], [0, -1], [0, 1.5]], ids=repr)
def test_wrong_times_before_which_nobody_takes_a_task_are_named(answer: Any) -> None:
    mine = type("Mine", (_Queue,), {"not_before_ns": lambda self, job: answer})
    with pytest.raises(InputError, match=r"Mine\.not_before_ns returned .*should be"):
        _run(mine())


def test_an_issuer_of_no_pool_takes_nothing() -> None:
    class Mine(ReadyQueue):
        scope = "machine"

        def as_data(self, job: Any) -> Any:
            return Order("keep", pool=job.group_of, pool_of_issuer=np.array([-1, 0]))

    b = GraphBuilder("two")
    for name in "ab":
        b.op(name, duration_ns=10)
    trace = simulate(b.build(), Machine((Device("cpu0", "cpu", workers=2),)), Mine(), engine="kernel")
    assert (trace.makespan_ns, trace.engine) == (20, "kernel" if is_compiled() else "kernel (pure Python)")


class Bump(Allocator):
    """Hands out one address after another."""

    kind = "bump"

    def __init__(self, capacity: Any = None, *, name: str = "d") -> None:
        super().__init__(capacity, name)
        self.at = 0

    def try_alloc(self, nbytes: int, stream: int = 0, owner: Any = None) -> Any:
        block = Block(self.at, nbytes, nbytes, stream, owner, LIVE, None)
        self.at += nbytes
        self._took(block)
        self._reserve(nbytes)
        return block

    def free(self, block: Block) -> Any:
        self._gave(block)
        self._reserve(-block.nbytes)
        return ()

    def spans(self) -> Any:
        return iter(())


class Lazy(Bump):
    """Forgets to say what it holds from the device."""

    def _reserve(self, nbytes: int) -> None:
        pass


class Floats(Bump):
    """Counts in something else than bytes."""

    def _reserve(self, nbytes: int) -> None:
        self.reserved += 1e9  # type: ignore[assignment]


class Short(Bump):
    """Gives too little."""

    def try_alloc(self, nbytes: int, stream: int = 0, owner: Any = None) -> Any:
        return super().try_alloc(nbytes // 2, stream, owner)


class Number(Bump):
    """Gives an address."""

    def try_alloc(self, nbytes: int, stream: int = 0, owner: Any = None) -> Any:
        return super().try_alloc(nbytes, stream, owner).address


class Freed(Bump):
    """Says that nothing has to be waited for in a way that nobody understands."""

    def free(self, block: Block) -> Any:
        super().free(block)


def test_an_allocator_says_where_in_a_method_that_runs_ask() -> None:
    with pytest.raises(
        InputError, match=r"^Mine defines alloc\(\), which a run does not ask; define try_all"
    ):
        type("Mine", (Bump,), {"alloc": lambda self, nbytes, stream=0, owner=None: None})


class Other(Bump):
    """Takes something else."""

    def free(self, block: Block, stream: int) -> Any:  # type: ignore[override]
        return ()


class Half(Allocator):
    """Is not complete."""

    def __init__(self, capacity: int | None = None, *, name: str) -> None: ...


@pytest.mark.parametrize("answer", [None, 1.5, -3, "1us", True])
def test_a_wrong_duration_of_a_processor_is_named(answer: Any) -> None:
    class Mine:
        end = None

        def __init__(self, device: Device, context: Any) -> None: ...

        def start(self, task: Any) -> Any:
            return answer

    b = GraphBuilder("one")
    b.op("a", duration_ns=10)
    machine = Machine((Device("gpu0", processor=Mine),))
    with pytest.raises(InputError, match=r"^Mine\.start returned .* for op 'a', should be a whole number"):
        simulate(b.build(), machine, ReadyQueue())


def no_allocator(capacity: int | None = None, *, name: str) -> Any:
    return 3


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Lazy, r"Lazy counts \(100, 0, 0, .*reserved at least in_use \+ waiting"),
        (Floats, "Floats counts .*should be whole numbers"),
        (
            Short,
            r"Short\.try_alloc returned a block of 50 bytes at 0 .*should be a live block of 100",
        ),
        (Number, r"Number\.try_alloc returned 0 for '.*', should be"),
        (Freed, r"Freed\.free returned None, should be a tuple of streams"),
        (Other, r"the allocator Other should have a method free\(block\): missing .* 'stream'"),
        (Half, "the allocator Half should have a method free; it has none"),
        (no_allocator, r"no_allocator returned 3, should be a devices\.memory\.Allocator"),
    ],
)
def test_a_wrong_answer_of_an_allocator_is_named(kind: Any, told: str) -> None:
    b = GraphBuilder("two")
    b.op("a", duration_ns=10, outputs=100)
    b.op("b", duration_ns=10, inputs=["a"])
    memory = tensor_memory({"gpu0": MemorySpec(kind)})
    for engine in ("auto", "simpy"):
        with pytest.raises(InputError, match=told):
            simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue(), memory=memory, engine=engine)


REWRITE = """\
machine: {devices: {gpu0: {kind: gpu}}}
workload: {ops: {a: {duration: 10us}}}
policy: {name: ready-queue, compile: ["MODULE:Mine"]}
"""
RECOVERY = """\
training_run:
  workers: 4
  steps: 100000000
  failures: {worker: {mtbf: 1min, kind: worker}}
  recovery: ["MODULE:Mine"]
machine: {devices: {gpu0: {kind: gpu}}}
workload: {ops: {a: {duration: 10us}}}
policy: ready-queue
"""


@pytest.mark.parametrize(
    ("text", "method", "answer", "told"),
    [
        (REWRITE, "apply(self, graph)", "None", "Mine.apply returned a NoneType, should be a Graph"),
        (REWRITE, "apply(self, graph)", "graph.op_names", "Mine.apply returned a tuple, should be a Graph"),
        (RECOVERY, "after_failure(self, fleet)", "4", "Mine returned 4, should be a Restart or None"),
        (RECOVERY, "after_failure(self, fleet)", "Restart(0.5)", "returned 0.5 at position 0, should be"),
    ],
)
def test_what_a_rewrite_or_a_recovery_returns(
    tmp_path: Path, text: str, method: str, answer: str, told: str
) -> None:
    base = "Recovery" if text is RECOVERY else "object"
    module = f"answers_{tmp_path.name}"  # a module is imported once
    (tmp_path / f"{module}.py").write_text(
        "from policies.recovery import Recovery, Restart\n\n"
        f"class Mine({base}):\n    def {method}:\n        return {answer}\n"
    )
    (tmp_path / "s.yaml").write_text(text.replace("MODULE", module))
    done = sim("run", tmp_path / "s.yaml", "--allow-code")
    assert done.exit_code == 2
    assert told in done.stderr
