"""A key that has no effect is refused: each row of the table, once without and once with one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from scenario_texts import write

from scenarios.run.conditions import RULES
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from scenarios.run.prepare_job import job_of
from sim.base.errors import ScenarioError

OPS = "workload: {ops: {a: {duration: 10us, output: 1MB}, b: {duration: 10us, inputs: [a]}}}"
INNER = OPS.partition(" ")[2]
TIMED = "workload: {ops: {a: {kind: matmul, flops: 1GFLOP, output: 1MB, dtype: fp32}}}"
ISSUE = "{name: ready-queue, synchronisation: issue}"
LINKED = "links: [{from: d, to: e, bandwidth: 1GB/s}]"
PAIR = "{ops: {a: {duration: 10us, output: 1MB, device: d}, b: {duration: 10us, inputs: [a], device: e}}}"


def on(device: str, machine: str = "", work: str = OPS, policy: str = "ready-queue", more: str = "") -> str:
    """Return a scenario with a device `d` (and a CPU `e` where links need it)."""
    other = ", e: {kind: cpu}" if "to: e" in machine else ""
    machine = f", {machine}" if machine else ""
    return f"machine: {{devices: {{d: {{{device}}}{other}}}{machine}}}\n{work}\npolicy: {policy}\n{more}\n"


def pipeline(fields: str, schedule: str = "1f1b", more: str = "") -> str:
    """Return a pipeline of two stages."""
    own = "" if re.search(r"\b(stages|layers|model|graph):", fields) else "stages: 2, "
    times = "" if re.search(r"\b(forward|model|graph|layers):", fields) else "forward: 1ms, backward: 2ms, "
    work = f"workload: {{pipeline: {{{own}{times}micro_batches: 4, {fields}}}}}"
    return f"{work}\npolicy: {schedule}\n{more}\n"


def loader(fields: str, more: str = "") -> str:
    """Return a training loop with a DataLoader."""
    work = f"{{model: data-loader, steps: 2, load: 1us, train: 1us, {fields}}}"
    return f"workload: {{build: {work}}}\n{more}\n"


def many_steps(fields: str, recovery: str = "restart-job", power: str = "at: [1h], worker: 0") -> str:
    """Return a training run of two hours in which something fails or is slow."""
    causes = f"failures: {{power: {{{power}}}}}, slow_downs: {{}}"
    run = f"{{duration: 2h, workers: 2, {causes}, recovery: [{recovery}]{fields and ', '}{fields}}}"
    return on("kind: gpu", more=f"training_run: {run}")


def trained(parallel: str, model: str = "") -> str:
    """Return a training step on two GPUs."""
    sizes = f"{{layers: 2, hidden: 64, heads: 4, vocabulary: 128{model}}}"
    step = f"calibration: h100-sxm, sequence: 32, batch: 2, gpus: 2, parallel: {{{parallel}}}"
    return f"workload: {{train: {{model: {sizes}, {step}}}}}\n"


def recording(device: str, what_if: str) -> str:
    """Return a recorded launch and its kernel, on a GPU with a gap of 2 us, with a what-if."""
    devices = f"{{devices: {{gpu0: {{{device}}}, cpu0: {{kind: cpu}}}}}}"
    return f"machine: {devices}\nworkload: {{graph: recorded.json, what_if: {what_if}}}\n"


def device(key: str, bad: str, good: str, **also: str) -> Iterator[tuple[str, str, str]]:
    """Return one case of a device's key; `also` changes the good one."""
    yield f"machine.devices.*.{key}", on(bad), on(good, **also)


SLOW = "{at: [3h], worker: 0, duration: 1h, factor: 2}"
INTRA_OP = "intra_op_parallelism_threads"
ASYNC = "{ops: {a: {duration: 1us, attributes: {async: true}}}}"
CALLED = (
    "{ops: {z: {duration: 1us}, c: {kind: call, inputs: [z], attributes: {body: f}}}, "
    "functions: {f: {inputs: [x], outputs: [a], "
    "ops: {a: {duration: 1us, inputs: [x], attributes: {async: true}}}}}}"
)
ON_D = "workload: {ops: {a: {duration: 1us, output: 1MB, device: d}}}"
SM = "kind: gpu, sms: 8, sharing: sm, streams: 2"
SHEET = "sms: 8, sharing: sm, streams: 2, peak: 1TFLOP/s, bandwidth: 1TB/s, l2: 1MiB"
SPLIT = "forward: 1ms, input_grad: 1ms, weight_grad: 1ms"
STAGE = "{forward: 1ms, backward: 2ms"
MODEL = "stages: 2, model: {layers: 4, hidden: 64, heads: 4, sequence: 32, rate: 1TFLOP/s"
SERVED = """
workload:
  serving: {step: {fixed: 1ms}, kv: {blocks: 9}, requests: {rate: 1/s, prompt: 9, output: 2, count: 2}}
policy: vllm-0.19
"""
GRAPH_LAYERS = "layers: [{forward: 1ms, backward: 2ms}, {forward: 1ms, backward: 2ms}], stages: 2"

CASES: list[tuple[str, str, str]] = [
    *(
        (key, f"{SERVED}{key}: {value}\n", on("kind: gpu", more=f"{key}: {value}"))
        for key, value in {
            "iterations": "2",
            "noise": "{jitter: 0.1}",
            "memory": "{allocator: pool}",
            "training_run": "{steps: 9, recovery: [restart-job]}",
        }.items()
    ),
    ("workload.train.parallel.context", trained("context: ring"), trained("cp: 2, context: ring")),
    (
        "workload.train.parallel.sequence_parallel",
        trained("sequence_parallel: false"),
        trained("tp: 2, sequence_parallel: false"),
    ),
    ("workload.train.parallel.shard", trained("sharding: none, shard: 2"), trained("shard: 2")),
    (
        "workload.train.parallel.ep",
        trained("ep: 2"),
        trained("ep: 2", ", experts: 4, top_k: 2, middle: {expert: 64}"),
    ),
    ("workload.train.parallel.ep", trained("ep: 2"), trained("ep: 1")),
    *device("copy_engines", "kind: gpu, copy_engines: 1", "kind: gpu, copy_engines: 1", machine=LINKED),
    *device("pin_memory", "kind: cpu, pin_memory: false", "kind: cpu, pin_memory: false", machine=LINKED),
    *device(
        "staging_bandwidth",
        "kind: cpu, staging_bandwidth: 1GB/s, pin_memory: false",
        "kind: cpu, staging_bandwidth: 1GB/s, pin_memory: false",
        machine=LINKED,
    ),
    *device(
        "cuda_graph",
        "kind: gpu, cuda_graph: {issue_cost: 1us}",
        "kind: gpu, cuda_graph: {issue_cost: 1us}",
        policy="{name: in-order, synchronisation: issue, cuda_graph: true}",
    ),
    *device(
        "event_record",
        "kind: gpu, streams: 2, event_record: 1us",
        "kind: gpu, streams: 2, event_record: 1us",
        policy=ISSUE,
    ),
    *device(
        "event_wait", "kind: gpu, event_wait: 1us", "kind: gpu, streams: 2, event_wait: 1us", policy=ISSUE
    ),
    *device("event_hop", "kind: gpu, event_hop: 1us", "kind: gpu, event_hop: 1us", policy=ISSUE),
    *device("legacy_stream", "kind: gpu, legacy_stream: true", "kind: gpu, streams: 2, legacy_stream: true"),
    *device("sharing", "kind: cpu, cores: 2, sharing: cores", "kind: cpu, workers: 2, sharing: cores"),
    *device("max_resident", "kind: gpu, streams: 2, max_resident: 1", f"{SM}, max_resident: 1"),
    *device("blocks_per_sm", "kind: gpu, sms: 8, blocks_per_sm: 2", f"{SM}, blocks_per_sm: 2"),
    *device(
        "oversubscription_cost",
        "kind: cpu, cores: 2, oversubscription_cost: 0.1",
        "kind: cpu, workers: 2, oversubscription_cost: 0.1",
    ),
    *device("sms", "kind: gpu, sms: 8", SM),
    *device("use_sms", f"{SM}, use_sms: 4", f"{SM}, peak: 1TFLOP/s, use_sms: 4", work=TIMED),
    *device(
        "cores_per_op",
        "kind: cpu, cores: 4, workers: 2, cores_per_op: 2",
        "kind: cpu, cores: 4, cores_per_op: 2",
    ),
    *device(
        "intra_op_parallelism_threads",
        "kind: cpu, cores: 4, workers: 1, intra_op_parallelism_threads: 4",
        "kind: cpu, cores: 4, intra_op_parallelism_threads: 4",
    ),
    *(
        (f"machine.devices.*.{key}", on(f"kind: npu, {given}"), on(f"kind: npu, {given}", work=TIMED))
        for key, given in [
            ("matrix.peak", "matrix: {peak: 1TFLOP/s}"),
            ("vector.peak", "vector: {peak: 1TFLOP/s}, matrix: {peak: 1TFLOP/s}"),
            ("matrix.block_size", "matrix: {peak: 1TFLOP/s, block_size: 16}"),
            ("matrix.kinds", "matrix: {peak: 2TFLOP/s, kinds: [relu]}, vector: {peak: 1TFLOP/s}"),
            ("vector.scratchpad", "vector: {scratchpad: 1MiB}, scratchpad: 1MiB"),
        ]
    ),
    *(
        (
            f"machine.devices.*.{key}",
            on(f"kind: {kind}, {key}: {value}{more}"),
            on(f"kind: {kind}, {key}: {value}{more}", work=TIMED),
        )
        for kind, key, value, more in [
            ("gpu", "peak", "1TFLOP/s", ""),
            ("npu", "scratchpad", "1MiB", ""),
            ("npu", "double_buffered", "false", ", scratchpad: 1MiB"),
            ("npu", "granule", "512B", ", scratchpad: 1MiB"),
            ("npu", "core_bandwidth", "1GB/s", ""),
            ("npu", "latency", "1us", ", scratchpad: 1MiB"),
            ("gpu", "kernel_floor", "1us", ""),
            ("gpu", "clock", "1GHz", f", cost: [fitted, roofline], {SHEET}"),
            ("gpu", "l2", "1MiB", f", cost: fitted, {SHEET.replace('l2: 1MiB', 'clock: 1GHz')}"),
            ("gpu", "generation", "hopper", f", cost: fitted, clock: 1GHz, {SHEET}"),
            ("gpu", "sustained", "90%", f", cost: fitted, clock: 1GHz, {SHEET}"),
            ("gpu", "dtype", "bf16", ", peak: 1TFLOP/s"),
            ("gpu", "op_overhead", "1us", ""),
            ("gpu", "bandwidth", "1TB/s", ""),
            ("gpu", "efficiency", "0.5", ", peak: 1TFLOP/s"),
            ("gpu", "memory_efficiency", "0.5", ", bandwidth: 1TB/s"),
            ("cpu", "core_bandwidth", "1GB/s", ", bandwidth: 2GB/s"),
            ("cpu", "serial_fraction", "0.1", ", peak: 1TFLOP/s, cores: 2, cores_per_op: 2"),
            ("cpu", "speedup", "{2: 1.5}", ", peak: 1TFLOP/s, cores: 2, cores_per_op: 2"),
            ("gpu", "cost", "{fixed: 1us}", ""),
        ]
    ),
    (
        "cost",
        on("kind: gpu", more="cost: {fixed: 1us}"),
        on("kind: gpu", work=TIMED, more="cost: {fixed: 1us}"),
    ),
    ("machine.devices.*.ideal", on("kind: gpu, ideal: true"), on("preset: h200-sxm, ideal: true")),
    ("machine.ideal", on("kind: gpu", "ideal: true"), on("preset: h200-sxm", "ideal: true")),
    (
        "machine.links.*.efficiency",
        on("kind: gpu", "links: [{from: d, to: e, efficiency: 0.5}]"),
        on("kind: gpu", "links: [{from: d, to: e, efficiency: 0.5, bandwidth: 1GB/s}]"),
    ),
    *(
        (
            f"machine.links.*.{key}",
            on("kind: gpu", f"sharing: independent, links: [{{from: d, to: e, {said}}}]"),
            on("kind: gpu", f"links: [{{from: d, to: e, {said}}}]"),
        )
        for key, said in [("duplex", "duplex: half"), ("bus", "bus: pci")]
    ),
    (
        "machine.links.*.rendezvous",
        on("kind: gpu", "links: [{from: d, to: e, rendezvous: true}]"),
        on(
            "kind: gpu",
            "links: [{from: d, to: e, rendezvous: true}]",
            "workload: {ops: {s: {kind: send, duration: 1us, attributes: {key: k}, output: 1MB, device: d}, "
            "r: {kind: recv, duration: 1us, attributes: {key: k}, device: e}}}",
        ),
    ),
    *(
        (f"machine.{key}", on("kind: gpu", said), on("kind: gpu", f"{said}, links: [{{from: d, to: e}}]"))
        for key, said in [
            ("sharing", "sharing: fifo"),
            ("routing", "routing: ecmp"),
            ("routes", "routes: [{from: d, to: e, via: []}]"),
        ]
    ),
    (
        "machine.collectives",
        *(
            on("kind: gpu", "collectives: {bandwidth: 1GB/s}", f"workload: {{ops: {{a: {{{said}}}}}}}")
            for said in (
                "kind: barrier, duration: 1us",
                "kind: barrier, attributes: {communicator: c}",
            )
        ),
    ),
    (
        "machine.hosts.*.threads",
        on("kind: cpu", "hosts: {h: {devices: [d], threads: 2}}"),
        on("kind: gpu", "hosts: {h: {devices: [d], threads: 2}}"),
    ),
    ("knowledge", pipeline("transfer: 1us", more="knowledge: none"), on("kind: gpu", more="knowledge: none")),
    (
        "policy.knowledge",
        pipeline("transfer: 1us", "{name: 1f1b, knowledge: none}"),
        on("kind: gpu", policy="{name: ready-queue, knowledge: none}"),
    ),
    (
        "compare.*.knowledge",
        pipeline("transfer: 1us", more="compare: [{name: gpipe, knowledge: none}]"),
        on("kind: gpu", more="compare: [{name: ready-queue, knowledge: none}]"),
    ),
    (
        "noise.stragglers",
        on("kind: gpu", more="noise: {stragglers: {factor: 2, probability: 0}}"),
        on("kind: gpu", more="noise: {stragglers: {factor: 2, probability: 1%}}"),
    ),
    (
        "memory.allocator",
        on("kind: gpu, memory: 1GB", more="memory: {allocator: bfc, devices: {d: bfc}}"),
        on("kind: gpu, memory: 1GB", more="memory: {allocator: bfc}"),
    ),
    (
        "memory.allocator.limits.*",
        on(
            "kind: gpu, memory: 1GB",
            LINKED,
            ON_D,
            more="memory: {allocator: {name: pool, limits: {a: 2MB}}, devices: {d: bfc}}",
        ),
        on(
            "kind: gpu, memory: 1GB", LINKED, ON_D, more="memory: {allocator: {name: pool, limits: {a: 2MB}}}"
        ),
    ),
    (
        "memory.devices.*.limits.*",
        on(
            "kind: gpu, memory: 1GB",
            LINKED,
            ON_D,
            more="memory: {devices: {e: {name: pool, limits: {a: 2MB}}}}",
        ),
        on(
            "kind: gpu, memory: 1GB",
            LINKED,
            ON_D,
            more="memory: {devices: {d: {name: pool, limits: {a: 2MB}}}}",
        ),
    ),
    (
        "memory.when_full",
        on("kind: gpu", more="memory: {when_full: wait}"),
        on("kind: gpu, memory: 1GB", more="memory: {when_full: wait}"),
    ),
    (
        "policy.cuda_graph",
        on("kind: cpu", policy="{name: in-order, cuda_graph: false}"),
        on("kind: gpu", policy="{name: in-order, cuda_graph: false}"),
    ),
    (
        "compare.*.cuda_graph",
        on("kind: cpu", more="compare: [{name: in-order, cuda_graph: false}]"),
        on("kind: gpu", more="compare: [{name: in-order, cuda_graph: false}]"),
    ),
    *(
        (
            f"workload.{at}.attributes.async",
            *(
                on("kind: cpu", work=f"workload: {work}", policy=policy)
                for policy in ("tfrt", "tensorflow-executor")
            ),
        )
        for at, work in (
            ("ops.*", ASYNC),
            ("sessions.*.workload.ops.*", f"{{sessions: {{t: {{workload: {ASYNC}}}}}}}"),
            ("functions.*.ops.*", CALLED),
            ("sessions.*.workload.functions.*.ops.*", f"{{sessions: {{t: {{workload: {CALLED}}}}}}}"),
        )
    ),
    (
        "workload.processes",
        *(
            on(
                "kind: cpu",
                work=f"workload: {{processes: one, sessions: {{t: {{workload: {INNER}}}}}}}",
                policy=policy,
            )
            for policy in ("tensorflow-executor", "sequential")
        ),
    ),
    (
        "policy.intra_op_parallelism_threads",
        on("kind: cpu", policy="{name: ready-queue, intra_op_parallelism_threads: 2}"),
        on("kind: cpu", policy="{name: tensorflow-executor, intra_op_parallelism_threads: 2}"),
    ),
    *(
        (
            "compare.*.intra_op_parallelism_threads",
            *(
                on("kind: cpu", more=f"compare: [{{name: {policy}, intra_op_parallelism_threads: 2}}]")
                for policy in ("in-order", "tensorflow-executor")
            ),
        )
        for _ in range(1)
    ),
    *(
        (
            "workload.sessions.*.intra_op_parallelism_threads",
            *(
                on(
                    "kind: cpu",
                    work=f"workload: {{sessions: {{t: {{workload: {INNER}, {INTRA_OP}: 2}}}}}}",
                    policy=policy,
                )
                for policy in ("ready-queue", "tensorflow-executor")
            ),
        )
        for _ in range(1)
    ),
    (
        "policy.runs",
        on("kind: cpu", policy="{name: tensorflow-executor, runs: in-turn}"),
        on("kind: cpu", policy="{name: tensorflow-executor, runs: side-by-side}", more="iterations: 2"),
    ),
    *(
        (
            "workload.sessions.*.inter_op_thread_pool",
            *(
                on(
                    "kind: cpu, cores: 2",
                    work=f"workload: {{sessions: {{t: {{workload: {INNER}, inter_op_thread_pool: 0}}}}}}",
                    policy=policy,
                )
                for policy in (
                    "ready-queue",
                    "{name: tensorflow-executor, session_inter_op_thread_pool: [1]}",
                )
            ),
        )
        for _ in range(1)
    ),
    *(
        (f"workload.pipeline.{at}{path}", pipeline(text), pipeline(f"checkpoint: always, {text}"))
        for path, key, value in (
            ("recompute", "recompute", "1ms"),
            ("kept.recompute", "kept", "{recompute: 1MB}"),
        )
        for at, text in [
            ("", f"{key}: {value}"),
            ("stages.*.", f"stages: [{STAGE}, {key}: {value}}}, {STAGE}}}]"),
            ("layers.*.", f"layers: [{STAGE}, {key}: {value}}}, {STAGE}}}], stages: 2"),
        ]
    ),
    (
        "workload.pipeline.backward_dependency",
        pipeline("backward_dependency: false"),
        pipeline("backward_dependency: false, checkpoint: always", "gpipe"),
    ),
    *(
        (f"workload.pipeline.{at}kept.weight_grad", pipeline(text), pipeline(text, "zb-h1"))
        for key in ("kept: {backward: 2MB, weight_grad: 1MB}",)
        for at, text in [
            ("", f"{SPLIT}, {key}"),
            ("stages.*.", f"stages: [{{{SPLIT}, {key}}}, {{{SPLIT}}}]"),
            ("layers.*.", f"layers: [{{{SPLIT}, {key}}}, {{{SPLIT}}}], stages: 2"),
        ]
    ),
    *(
        (f"workload.pipeline.{at}overlapped", pipeline(text), pipeline(text, "dualpipe"))
        for at, text in [
            ("", f"{SPLIT}, overlapped: 2ms"),
            ("stages.*.", f"stages: [{{{SPLIT}, overlapped: 2ms}}, {{{SPLIT}, overlapped: 2ms}}]"),
            ("layers.*.", f"layers: [{{{SPLIT}, overlapped: 2ms}}, {{{SPLIT}, overlapped: 2ms}}], stages: 2"),
        ]
    ),
    (
        "workload.pipeline.checkpoint",
        pipeline("checkpoint: always")
        .replace("4", "1")
        .replace("1f1b", "{name: custom, order: '0F0 1F0 1B0 0B0'}"),
        pipeline("checkpoint: always"),
    ),
    (
        "workload.pipeline.partition",
        pipeline("partition: block"),
        pipeline(f"{GRAPH_LAYERS}, partition: block"),
    ),
    (
        "workload.pipeline.bandwidth",
        pipeline(f"{GRAPH_LAYERS}, bandwidth: 1GB/s"),
        pipeline(f"{GRAPH_LAYERS}, bandwidth: 1GB/s, partition: pipedream", "pipedream"),
    ),
    (
        "workload.pipeline.portals",
        pipeline("stages: 3, portals: false"),
        pipeline("stages: 3, portals: false, skips: [{from: 0, to: 2, size: 1MB}]"),
    ),
    (
        "workload.pipeline.devices",
        pipeline("devices: [d0, d1]"),
        pipeline("devices: [d0, d1]", more="machine: {devices: {d: {kind: gpu, count: 2}}}"),
    ),
    (
        "workload.build.jitter.size",
        loader("jitter: {size: 0.5}"),
        loader("jitter: {size: 0.5}, size: 1MB"),
    ),
    *(
        (f"workload.build.{key}", loader(f"{key}: {value}"), loader(f"{key}: {value}, {needed}"))
        for key, value, needed in [
            ("bandwidth", "1GB/s", "size: 1MB"),
            ("seed", "1", "jitter: 0.1"),
            ("all_reduce", "1us", "replicas: 2"),
            ("prefetch_factor", "3", "workers: 1"),
            ("in_order", "false", "workers: 1"),
        ]
    ),
    *(
        (
            f"workload.what_if.{key}",
            recording("kind: gpu, gap: 3us", value),
            recording("kind: gpu", value),
        )
        for key, value in [
            ("gap", "{gap: x0.5}"),
            ("*.gap", "[{gap: x0.5}]"),
            ("cuda_graph.gap", "{cuda_graph: {gap: 1us}}"),
            ("*.cuda_graph.gap", "[{cuda_graph: {gap: 1us}}]"),
        ]
    ),
    (
        "training_run.failures.*.at.*",
        many_steps("", power="at: [1h, 2h], worker: 0"),
        many_steps(""),
    ),
    (
        "training_run.slow_downs.*.at.*",
        many_steps("").replace("slow_downs: {}", f"slow_downs: {{a: {SLOW}}}"),
        many_steps("").replace("slow_downs: {}", f"slow_downs: {{a: {SLOW.replace('3h', '119min')}}}"),
    ),
    (
        "training_run.devices",
        many_steps("devices: 8", power="kind: worker, mtbf: 1h"),
        many_steps("devices: 8", power="kind: device, mtbf: 1h"),
    ),
    *(
        (f"training_run.{key}", many_steps(fields), many_steps(fields, "restart-job, shrink"))
        for key, fields in [
            ("replicas", "replicas: 1"),
            ("at_least", "at_least: 2"),
            ("restart.worker", "restart: {worker: 1min}"),
        ]
    ),
    (
        "workload.pipeline.model.bandwidth",
        pipeline(f"{MODEL}, bandwidth: 1GB/s}}"),
        pipeline(f"{MODEL}, bandwidth: 1GB/s, tp: 2}}"),
    ),
]


def check(folder: Path, text: str) -> None:
    """Build the job of every run that a scenario describes."""
    (folder / "g.json").write_text(
        '{"schema": "sim.graph/1", "name": "g", "ops": [{"name": "a", "kind": "matmul", "flops": 1000000}]}'
    )
    ops = [
        {"name": "l", "kind": "launch", "duration_ns": 9, "device": "cpu", "attributes": {"thread": "t"}},
        {"name": "k", "duration_ns": 9, "device": "gpu", "after": ["l"], "attributes": {"stream": 7}},
    ]
    facts = {"schema": "sim.graph/1", "name": "r", "devices": {"gpu": {"gap": "2us"}}}
    (folder / "recorded.json").write_text(json.dumps({**facts, "ops": ops}))
    scenario = load_scenario(write(folder, text))
    for case in [scenario.case(), *(scenario.entry(i) for i in range(len(scenario.variants)))]:
        job_of(case)


def test_every_row_is_tried() -> None:
    assert sorted({key for key, _, _ in CASES}) == sorted(key for rule in RULES for key in rule.keys)


@pytest.mark.parametrize(("key", "bad", "good"), CASES, ids=[key for key, _, _ in CASES])
def test_a_key_without_effect_is_refused_and_one_with_effect_is_not(
    tmp_path: Path, key: str, bad: str, good: str
) -> None:
    check(tmp_path, good)
    with pytest.raises(ScenarioError) as caught:
        check(tmp_path, bad)
    place = re.escape(key).replace(r"\*", r"[^.]+")
    rule = next(rule for rule in RULES if key in rule.keys)
    assert re.search(
        rf"s\.yaml:\d+:\d+: {place}: has no effect: {re.escape(rule.reason)}$",
        str(caught.value),
        re.MULTILINE,
    )


def test_a_virtual_device_that_no_op_belongs_to(tmp_path: Path) -> None:
    text = on("kind: gpu, memory: 1GB, virtual_devices: {a: 1MB, c: 1MB}")
    with pytest.raises(
        ScenarioError, match=r"s\.yaml:1:78: machine\.devices\.d\.virtual_devices\.c: unknown model"
    ):
        check(tmp_path, text)
    check(tmp_path, text.replace(", c: 1MB", ""))


def test_a_key_that_an_entry_needs_is_accepted(tmp_path: Path) -> None:
    links = "{machine.links: [{from: d, to: d2}], machine.devices.d2: {kind: gpu}}"
    more = f"compare: [{{label: links, set: {links}}}]"
    scenario = load_scenario(write(tmp_path, on("kind: gpu, copy_engines: 1", more=more)))
    assert run_scenario(scenario).trace.makespan_ns == 20_000


def test_a_key_that_an_entry_sets_has_to_count_there(tmp_path: Path) -> None:
    more = "compare: [{label: x, set: {machine.devices.d.copy_engines: 1}}]"
    scenario = load_scenario(write(tmp_path, on("kind: gpu", more=more)))
    run_scenario(scenario)
    with pytest.raises(
        ScenarioError, match=r"s\.yaml:4:60: machine\.devices\.d\.copy_engines: has no effect"
    ):
        run_scenario(scenario, "x")


def test_a_key_of_a_file_that_a_scenario_extends_is_let_be(tmp_path: Path) -> None:
    write(tmp_path, on("kind: gpu, copy_engines: 1"), "base.yaml")
    job_of(load_scenario(write(tmp_path, "extends: base.yaml")).case())
    own = "extends: base.yaml\nmachine: {devices: {d: {copy_engines: 2}}}"
    with pytest.raises(
        ScenarioError, match=r"s\.yaml:2:39: machine\.devices\.d\.copy_engines: has no effect"
    ):
        job_of(load_scenario(write(tmp_path, own)).case())


def test_settings(tmp_path: Path) -> None:
    path = write(tmp_path, on("kind: gpu, copy_engines: 1", LINKED))
    key = "machine.devices.d.copy_engines"
    job_of(load_scenario(path, sets=["machine.links=[]"]).case())  # the file's key is let be
    with pytest.raises(ScenarioError, match=rf"--set {key}=2: {key}: has no effect"):
        job_of(load_scenario(path, sets=["machine.links=[]", f"{key}=2"]).case())
    job_of(load_scenario(path, sets=["machine.links=[]"], vary=[f"{key}=2"]).case())
