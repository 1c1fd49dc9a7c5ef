"""In which order TensorFlow's executor runs the nodes of small graphs on one thread, asked of TensorFlow.

``python tests/tensorflow_orders.py`` writes ``tests/data/tensorflow_orders.json``, with which our executor is
compared where TensorFlow is not installed (recorded with tensorflow-cpu 2.21.0, which is all it needs).

* Two virtual devices, ``device_count={"CPU": 2}``, and one thread: ``inter_op_parallelism_threads=1`` in a
  session with a pool of its own, or the calling thread (``RunOptions(inter_op_thread_pool=-1)``). Grappler
  and all other optimizers are off, so that what runs is the graph that is written here, cut by TensorFlow
  into a part for each device.
* ``TF_CPP_VMODULE=executor=2`` makes the executor log each node that it takes, dead ones included, and each
  asynchronous kernel that is done. (A full trace leaves out Sends, Recvs and dead nodes.)
* Each graph runs in three sessions of its own. What is not the same in all of them depends on addresses, as
  the order of out-edges does from nine on (``EdgeSet`` in tensorflow/core/graph/edgeset.h), and is left out.
  So are graphs in which a node has more than six, or the source of a part, which leads to the sink, too.

A case has the nodes of each part in TensorFlow's order: name, op, device, what it reads, other attributes.
Then what predicates say, and the order: places in the list of nodes, a Recv or another asynchronous node
where it is done, ``-1 - place`` for a dead one.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "data" / "tensorflow_orders.json"

MOST = 180
"""Tasks of a case: longer ones would only make the file large."""

DEVICES = ("/cpu:0", "/cpu:1")
ASYNCHRONOUS = ("_Recv", "_HostRecv", "QueueDequeueV2")

_LINE = re.compile(
    r"(Process node|Async kernel done): \d+ step \d+ \{\{node ([^}]+)\}\} = (\w+)"
    r".*?( is dead:?)? device: \S+$"
)

Says = dict[str, dict[str, Any]]
"""Attributes of nodes that decide."""
Build = Callable[[Any], tuple[list[Any], Says]]
"""Makes a graph; returns what to run."""


def random_graph(seed: int, devices: int = 2) -> Build:
    """A random graph of sums, identities, control edges and conditions."""

    def build(tf: Any) -> tuple[list[Any], Says]:
        rng, raw = random.Random(seed), tf.raw_ops
        says: Says = {}
        uses: Counter[str] = Counter()
        made: list[Any] = []

        def somewhere() -> Any:
            return tf.device(DEVICES[rng.randrange(devices)])

        def name() -> str:
            return f"o{len(made)}"

        def add(tensor: Any) -> Any:
            made.append(tensor.op)
            return tensor

        def some(tensors: list[Any], most: int) -> list[Any]:
            free = [tensor for tensor in tensors if uses[tensor.name] < 4]
            chosen = rng.sample(free, min(rng.randint(1, most), len(free)))
            uses.update(tensor.name for tensor in chosen)
            return chosen

        def op(tensors: list[Any], after: list[Any]) -> Any:
            inputs = some(tensors, 3)
            with somewhere(), tf.control_dependencies(after):
                if rng.random() < 0.3:
                    return add(raw.Identity(input=inputs[0], name=name()))
                return add(raw.AddN(inputs=inputs, name=name()))

        tensors = []
        for device in DEVICES[:devices]:
            with tf.device(device):
                shape = tf.constant([2], name=f"shape{device[-1]}")
                for _ in range(rng.randint(1, 3)):
                    tensors.append(add(raw.RandomUniform(shape=shape, dtype=tf.float32, name=name())))
        for _ in range(rng.randint(3, 8)):
            if rng.random() >= 0.35:
                tensors.append(op(tensors, [rng.choice(made)] if rng.random() < 0.2 else []))
                continue
            says[f"p{len(made)}"] = {"outcome": rng.random() < 0.5}
            with somewhere():
                predicate = tf.constant(says[f"p{len(made)}"]["outcome"], name=f"p{len(made)}")
            with somewhere():
                sides = raw.Switch(data=some(tensors, 1)[0], pred=predicate, name=name())
            made.append(sides.output_false.op)
            ends = []
            for side in sides:
                branch = [side]
                for _ in range(rng.randint(1, 3)):
                    branch.append(op(branch, []))
                ends.append(branch[-1])
            with somewhere():
                tensors.append(add(raw.Merge(inputs=ends, name=name()).output))
        return made, says

    return build


def loop(body: str, condition: str, parallel: int, branch: str = "") -> Build:
    """Three trips; body and condition on one device or two; with `branch`, a condition in the body."""

    def build(tf: Any) -> tuple[list[Any], Says]:
        raw, v1 = tf.raw_ops, tf.compat.v1
        v1.disable_control_flow_v2()

        def goes_on(i: Any, value: Any) -> Any:
            with tf.device(condition):
                return raw.Less(x=i, y=tf.constant(3, name="n"), name="less")

        def step(i: Any, value: Any) -> tuple[Any, Any]:
            with tf.device(body):
                sums = [raw.AddN(inputs=[value], name=f"slow{k}") for k in range(3)]
            if branch:
                with tf.device(branch):
                    first = raw.Less(x=i, y=tf.constant(1, name="k"), name="first")
                    sums[0] = v1.cond(
                        first,
                        lambda: raw.AddN(inputs=[sums[0]], name="yes"),
                        lambda: raw.AddN(inputs=[sums[0], sums[1]], name="no"),
                        name="c",
                    )
            with tf.device(body):
                out = raw.AddN(inputs=sums, name="out")
            with tf.device("/cpu:0"):
                return raw.AddV2(x=i, y=tf.constant(1, name="one"), name="next"), out

        with tf.device("/cpu:0"):
            zero = tf.constant(0, name="zero")
            x = raw.RandomUniform(shape=tf.constant([2], name="shape"), dtype=tf.float32, name="x")
            i, value = v1.while_loop(
                goes_on, step, [zero, x], parallel_iterations=parallel, back_prop=False, name="w"
            )
        says = {"w/LoopCond": {"trips": 3}, "w/first": {"outcome": [True, False, False]}}
        return [i.op, value.op], says

    return build


def queue(tf: Any) -> tuple[list[Any], Says]:
    """An asynchronous kernel that is done on the spot: the queue has what it asks for."""
    raw, v1 = tf.raw_ops, tf.compat.v1
    with tf.device("/cpu:0"):
        x = raw.RandomUniform(shape=tf.constant([2], name="shape"), dtype=tf.float32, name="x")
        fifo = v1.FIFOQueue(9, tf.float32, shapes=[[2]], name="fifo")
        fill = fifo.enqueue_many(tf.zeros([9, 2]), name="fill")
        v1.get_default_session().run(fill)
        got = fifo.dequeue(name="got")
        ends = [raw.Neg(x=got, name=f"u{k}") for k in range(3)]
        ends += [raw.Neg(x=x, name=f"v{k}") for k in range(3)]
        ends.append(raw.Neg(x=ends[0], name="uu"))
    return [tensor.op for tensor in ends], {}


def cases() -> dict[str, tuple[Build, str]]:
    """Return what is recorded: graphs, and whether a pool or the caller runs them."""
    found: dict[str, tuple[Build, str]] = {"queue pool": (queue, "pool"), "queue caller": (queue, "caller")}
    for parallel in (1, 2, 10):
        for body in DEVICES:
            for condition in DEVICES:
                name = f"loop of {parallel}, body {body[1:]}, condition {condition[1:]}"
                found[name] = (loop(body, condition, parallel), "pool")
        for branch in DEVICES:
            name = f"loop of {parallel}, body cpu:1, branch {branch[1:]}"
            found[name] = (loop("/cpu:1", "/cpu:0", parallel, branch), "pool")
    for seed in range(100):
        found[f"random {seed}"] = (random_graph(seed), "pool")
    for seed in range(100, 115):
        found[f"random {seed} caller"] = (random_graph(seed, devices=1), "caller")
    return found


def record(tf: Any, build: Build, threads: str) -> dict[str, Any]:
    """Run a graph once in a session of its own, and read what the executor logs."""
    v1 = tf.compat.v1
    config = v1.ConfigProto(
        device_count={"CPU": 2},
        inter_op_parallelism_threads=1,
        intra_op_parallelism_threads=1,
        use_per_session_threads=True,
    )
    config.graph_options.optimizer_options.opt_level = -1
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    pool = -1 if threads == "caller" else 0
    options = v1.RunOptions(output_partition_graphs=True, inter_op_thread_pool=pool)
    metadata = v1.RunMetadata()
    with tempfile.TemporaryFile() as log, tf.Graph().as_default(), v1.Session(config=config) as session:
        targets, says = build(tf)
        stderr = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            session.run(targets, options=options, run_metadata=metadata)
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        log.seek(0)
        lines = log.read().decode(errors="replace").splitlines()
    nodes = [_described(node) for part in metadata.partition_graphs for node in part.node]
    place = {name: k for k, (name, *_) in enumerate(nodes)}
    order, dead = [], {}
    for what, name, op, is_dead in (found.groups() for line in lines if (found := _LINE.search(line))):
        if name == "_SOURCE":
            continue
        if what == "Process node":
            dead[name] = bool(is_dead)
        if (what == "Process node") != (op in ASYNCHRONOUS):
            order.append(-1 - place[name] if dead[name] else place[name])
    says = {name: attributes for name, attributes in says.items() if name in place}
    return {"threads": threads, "nodes": nodes, "says": says, "order": order}


def _described(node: Any) -> list[Any]:
    more = {}
    if node.op in ("_Send", "_Recv", "_HostSend", "_HostRecv"):
        more["key"] = node.attr["tensor_name"].s.decode()
    if node.op == "Enter":
        more["frame"] = node.attr["frame_name"].s.decode()
        more["parallel_iterations"] = node.attr["parallel_iterations"].i
        more["constant"] = node.attr["is_constant"].b
    return [node.name, node.op, f"cpu{node.device[-1]}", " ".join(node.input), more]


def out_degree(nodes: list[list[Any]]) -> int:
    """Return the largest number of out-edges, of the sources too, which lead to all that reads nothing."""
    edges: Counter[str] = Counter()
    for _, _, device, inputs, _ in nodes:
        read = [name.lstrip("^").partition(":")[0] for name in inputs.split()]
        edges.update(read or [f"source of {device}"])
    return max(edges.values())


def main() -> None:
    """Record all cases, and say which were left out."""
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="0", TF_CPP_VMODULE="executor=2", TF_ENABLE_ONEDNN_OPTS="0")
    import tensorflow as tf  # type: ignore[import-not-found]

    tf.compat.v1.disable_eager_execution()
    found, left_out = {}, []
    for name, (build, threads) in cases().items():
        runs = [record(tf, build, threads) for _ in range(3)]
        if (
            runs[0] == runs[1] == runs[2]
            and out_degree(runs[0]["nodes"]) <= 6
            and len(runs[0]["order"]) <= MOST
        ):
            found[name] = runs[0]
        else:
            left_out.append(name)
    texts = [f"{json.dumps(name)}: {json.dumps(case, separators=(',', ':'))}" for name, case in found.items()]
    rows = ",\n".join(texts)
    RECORDED.write_text(f'{{"tensorflow": "{tf.__version__}", "cases": {{\n{rows}\n}}}}\n')
    print(f"{len(found)} recorded, left out: {', '.join(left_out)}", file=sys.stderr)


if __name__ == "__main__":
    main()
