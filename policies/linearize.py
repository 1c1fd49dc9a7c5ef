"""Program orders: the order in which a host issues the ops of a graph, decided before the run.

Each is a class with `order(job)`, which returns the ops of a graph, every op after its inputs.
Its docstring states the rule and its source.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from policies.option_checks import name_list, one_of
from sim import Job
from sim.base.errors import InputError, UnknownNameError
from sim.graph.rendezvous_keys import program_order
from sim.graph.walks import Dag, least_first


class Topological:
    """Topological order; `ties` decides which of the free ops comes first.

    Parameters
    ----------
    ties : str
        ``"least-index"``: the op that was added to the graph first. This order is stable: ops added in
        a topological order keep it. It is also the order of a job without a linearizer.
        ``"fifo"``: the op that became free first (breadth first).

    Raises
    ------
    InputError
        If `ties` is any other word.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two chains")
    >>> for name, inputs in {"a": [], "b": ["a"], "c": ["b"], "x": [], "y": ["x"]}.items():
    ...     _ = b.op(name, inputs=inputs, duration_ns=1)
    >>> job = make_job(b.build(), Machine((Device("gpu0"),)))
    >>> [[job.graph.op_names[op] for op in Topological(t).order(job)] for t in ("least-index", "fifo")]
    [['a', 'b', 'c', 'x', 'y'], ['a', 'x', 'b', 'y', 'c']]
    """

    def __init__(self, ties: str = "least-index") -> None:
        self.ties = one_of("topological", "ties", ties, ("least-index", "fifo"))

    def order(self, job: Job) -> Sequence[int]:
        """Return every op once, in program order."""
        if self.ties == "least-index":
            return program_order(job.graph).tolist()  # type: ignore[no-any-return]
        return as_freed(job.dag(), depth_first=False)


def as_freed(dag: Dag, *, depth_first: bool) -> list[int]:
    """Return the order of Kahn's algorithm with a queue or, if `depth_first`, with a stack.

    Examples
    --------
    >>> dag = Dag([[1, 2], [3], [], []], [[], [0], [0], [1]])
    >>> as_freed(dag, depth_first=False), as_freed(dag, depth_first=True)
    ([0, 1, 2, 3], [0, 1, 3, 2])
    """
    pending = dag.pending()
    free = deque(dag.sources())
    order = []
    while free:
        op = free.popleft()
        order.append(op)
        freed = dag.freed_by(op, pending)
        if depth_first:
            free.extendleft(reversed(freed))
        else:
            free.extend(freed)
    return order


class DepthFirst:
    """Topological order that continues with the consumers of the op just placed.

    Depth-first order: finish a branch before the next one begins, which keeps few tensors alive.

    Kahn's algorithm with a stack: of the consumers that an op frees, the first in edge order comes
    next, and the others wait until its branch reaches an end or a join.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two branches")
    >>> for name, inputs in {"a": [], "b": ["a"], "c": ["a"], "d": ["b"], "e": ["d", "c"]}.items():
    ...     _ = b.op(name, inputs=inputs, duration_ns=1)
    >>> job = make_job(b.build(), Machine((Device("gpu0"),)))
    >>> [job.graph.op_names[op] for op in DepthFirst().order(job)]
    ['a', 'b', 'd', 'c', 'e']
    """

    def order(self, job: Job) -> Sequence[int]:
        """Return every op once, in program order."""
        return as_freed(job.dag(), depth_first=True)


class ReverseDepthFirst:
    """Depth first from the outputs: each op right before the first op that needs it.

    Reverse depth-first order, the default of ONNX Runtime's sequential executor.

    The walk begins at the ops without consumers and goes against the edges; an op is placed after
    everything it needs. Of several ends or several producers, the one with the largest index is
    visited first (onnxruntime, core/graph/graph_viewer.cc and ``Graph::ReverseDFSFrom`` of graph.cc).

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two branches")
    >>> for name, inputs in {"a": [], "b": ["a"], "c": ["a"], "d": ["b"], "e": ["d", "c"]}.items():
    ...     _ = b.op(name, inputs=inputs, duration_ns=1)
    >>> job = make_job(b.build(), Machine((Device("gpu0"),)))
    >>> [job.graph.op_names[op] for op in ReverseDepthFirst().order(job)]
    ['a', 'b', 'd', 'c', 'e']
    """

    def order(self, job: Job) -> Sequence[int]:
        """Return every op once, in program order."""
        dag = job.dag()
        visited = bytearray(len(job.graph))
        order = []
        stack = [op for op, row in enumerate(dag.successors) if not row]
        while stack:
            op = stack.pop()
            if op < 0:  # everything it needs is placed
                order.append(~op)
                continue
            if visited[op]:
                continue
            visited[op] = 1
            stack.append(~op)
            stack.extend(p for p in sorted(dag.predecessors[op]) if not visited[p])
        return order


class Priority:
    """Topological order by ``attributes["priority"]``, lowest number first; the default is 0.

    Priority order, ONNX Runtime's other execution order.

    Kahn's algorithm, taking shape and size ops first, then the lowest priority number, then the
    lowest index (onnxruntime, core/graph/graph_viewer.cc, ``PriorityNodeCompare``). On a graph without
    priorities it is the topological order with the least index first.

    Parameters
    ----------
    kinds : iterable of str
        Kinds of op placed before all others as soon as they are free.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("urgent")
    >>> _ = b.op("a", kind="const"), b.op("b", kind="shape")
    >>> _ = b.op("c", kind="const", attributes={"priority": -1})
    >>> job = make_job(b.build(), Machine((Device("gpu0"),)))
    >>> [job.graph.op_names[op] for op in Priority().order(job)]
    ['b', 'c', 'a']
    """

    def __init__(self, kinds: Sequence[str] = ("shape", "size")) -> None:
        self.kinds = frozenset([kinds] if isinstance(kinds, str) else kinds)

    def order(self, job: Job) -> Sequence[int]:
        """Return every op once, in program order."""
        graph = job.graph
        late = [kind.lower() not in self.kinds for kind in graph.kinds]
        keys = [(late[code], 0) for code in graph.kind_code.tolist()]
        for op, priority in graph.attribute("priority").items():
            keys[op] = (keys[op][0], priority)
        return least_first(job.dag(), keys)


class CriticalPathFirst:
    """Topological order; of the free ops, the one with the longest path to the end comes first.

    Critical path first: a program order by bottom level, for runtimes that issue a fixed list.

    Ties break by op index. Without durations (``knowledge: none``) every op counts as one.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("short and long")
    >>> for name, inputs, ns in (("a", [], 1), ("b", [], 1), ("c", ["b"], 9), ("d", ["a", "c"], 1)):
    ...     _ = b.op(name, inputs=inputs, duration_ns=ns)
    >>> job = make_job(b.build(), Machine((Device("gpu0"),)))
    >>> [job.graph.op_names[op] for op in CriticalPathFirst().order(job)]
    ['b', 'c', 'a', 'd']
    """

    def order(self, job: Job) -> Sequence[int]:
        """Return every op once, in program order."""
        return least_first(job.dag(), (-job.bottom_level_ns).tolist())


class MemoryAware:
    """Topological order; of the free ops, the one that adds the fewest bytes comes first.

    Memory-aware order: a greedy list order that keeps the bytes in use low.

    ::

        free ops    x: makes 8, is the last to read 2   →  +6
                    y: makes 1, is the last to read 4   →  -3    ← next

    Finding the order of least peak memory is NP-complete for general graphs (Sethi 1975, "Complete
    register allocation problems", SIAM J. Comput. 4(3)); taking the op that adds least is the usual greedy
    answer (XLA has one: ``ListMemoryScheduler``, hlo_memory_scheduler.cc).

    An op adds the bytes of its outputs that have readers, and frees those of every tensor of which it
    is the last reader. Ties break by op index.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("reduce early")
    >>> for name, inputs, size in (("a", [], 9), ("b", [], 9), ("ra", ["a"], 1), ("rb", ["b"], 1)):
    ...     _ = b.op(name, inputs=inputs, outputs=size, duration_ns=1)
    >>> _ = b.op("sum", inputs=["ra", "rb"], outputs=1, duration_ns=1)
    >>> job = make_job(b.build(), Machine((Device("gpu0"),)))
    >>> [job.graph.op_names[op] for op in MemoryAware().order(job)]
    ['a', 'ra', 'b', 'rb', 'sum']
    """

    def order(self, job: Job) -> Sequence[int]:
        """Return every op once, in program order."""
        graph, dag = job.graph, job.dag()
        nbytes = graph.tensor_nbytes.tolist()
        # Each reader counts once; a tensor read across iterations or without a producer is never freed.
        reads = [sorted(set(row)) for row in graph.inputs.lists()]
        carried = set(graph.inputs.indices[graph.input_distance > 0].tolist())
        carried |= {t for t, producer in enumerate(graph.tensor_producer.tolist()) if producer < 0}
        readers: list[set[int]] = [set() for _ in nbytes]
        for op, tensors in enumerate(reads):
            for t in tensors:
                readers[t].add(op)
        adds = [sum(nbytes[t] for t in row if readers[t]) for row in graph.outputs.lists()]
        for t, ops in enumerate(readers):
            if len(ops) == 1 and t not in carried:
                adds[next(iter(ops))] -= nbytes[t]
        pending = dag.pending()
        heap = [(adds[op], op) for op in dag.sources()]
        heapify(heap)
        placed = bytearray(len(graph))
        order = []
        while heap:
            _, op = heappop(heap)
            if placed[op]:  # a stale entry, from before the op became the last reader of something
                continue
            placed[op] = 1
            order.append(op)
            for t in reads[op]:
                readers[t].discard(op)
                if len(readers[t]) == 1 and t not in carried:
                    last = next(iter(readers[t]))
                    adds[last] -= nbytes[t]
                    if not pending[last]:
                        heappush(heap, (adds[last], last))
            for freed in dag.freed_by(op, pending):
                heappush(heap, (adds[freed], freed))
        return order


class UserOrder:
    """The order given as a list of op names.

    A program order that the user writes down: the names of all ops, first to last.

    Parameters
    ----------
    ops : sequence of str
        Every op of the graph exactly once. Producers need not come before consumers, but if they do
        not, a policy that keeps to the order gets stuck and reports it.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two")
    >>> _ = b.op("a", duration_ns=1), b.op("b", duration_ns=1)
    >>> list(UserOrder(["b", "a"]).order(make_job(b.build(), Machine((Device("gpu0"),)))))
    [1, 0]
    """

    def __init__(self, ops: Sequence[str]) -> None:
        self.ops = name_list("program", "ops", ops)

    def order(self, job: Job) -> Sequence[int]:
        """Return every op once, in program order.

        Raises
        ------
        UnknownNameError
            If a name is not an op of the graph.
        InputError
            If an op is missing or appears twice.
        """
        index = {name: op for op, name in enumerate(job.graph.op_names)}
        first: dict[str, int] = {}
        for k, name in enumerate(self.ops):
            if name not in index:
                raise UnknownNameError("op", name, index, path=("ops", k))
            if first.setdefault(name, k) != k:
                message = f"program: op {name!r} is {self.ops.count(name)} times in the list, not once"
                raise InputError(message, path=("ops", k))
        for name in index:
            if name not in first:
                raise InputError(f"program: op {name!r} is nowhere in the list, not once", path=("ops",))
        return [index[name] for name in self.ops]
