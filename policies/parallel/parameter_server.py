"""Parameter servers: workers push gradients to servers, which update parameters, and pull them back.

::

    gpu0  F B ──push──┐                      ┌──pull── F B      synchronous: a server sums the gradients of
    gpu1  F B ──push──┴─► ps0  sum, update ──┴──pull── F B          all workers, and updates once per step

    gpu0  F B ─────push─► ps0  update ───────pull── F B         asynchronous: it updates once per push;
    gpu1     F B ──push─►        update ──────pull─── F B           a worker waits only for its own update

Parameters go to the servers in turn, in the order of registration, as TensorFlow's ``replica_device_setter``
places variables. Pushes and pulls are the simulator's own transfers over the machine's links; the first pull
is at time 0. `sim.explain.training` measures the staleness of the asynchronous form in a trace.

Sources: Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014; TensorFlow,
tensorflow/python/training/device_setter.py; Chen et al., "Revisiting Distributed Synchronous SGD", arXiv
1604.00981.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

from policies.parallel.rank_grid import Ranks, gpus
from policies.parallel.training_step import TrainingStep
from policies.rewrite.records import Edge, OpEntry, Records, write
from sim import Graph, Machine
from sim.base.arrays import MOST_BUILT, at_most
from sim.base.errors import InputError
from sim.base.units import format_count
from sim.explain.training import PUSHED_BY, UPDATES
from sim.graph.graph import output_name


class ParameterServer:
    """Run a training step on workers whose parameters are on servers.

    Parameters
    ----------
    workers : int or list of str
        Number of workers, or their devices; a number means accelerators of the machine that are not servers,
        in machine order.
    servers : list of str
        Devices that keep parameters.
    asynchronous : bool
        Whether each push is a separate update.

    Examples
    --------
    >>> from policies.rewrite.backward import TrainingRewrite
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("a layer")
    >>> _ = b.input("x", 400), b.parameter("w", 800)
    >>> _ = b.op("a", kind="matmul", inputs=["x", "w"], outputs=400, flops=1000)
    >>> ParameterServer(2, ["cpu0"]).apply(TrainingRewrite().apply(b.build())).op_names[-2:]
    ('cpu0/w/sum', 'cpu0/w/update')
    """

    def __init__(
        self, workers: int | list[str], servers: list[str] | int | str, asynchronous: bool = False
    ) -> None:
        self.workers = Ranks.of("parameter-server", workers, "workers")
        if isinstance(servers, int | str):
            message = f"servers must be a list of devices; found {servers!r}"
            raise InputError(f"parameter-server: {message}", path=("servers",))
        self.servers = Ranks.of("parameter-server", servers, "servers").names or ()
        self.asynchronous = asynchronous

    def apply(self, graph: Graph, machine: Machine | None = None) -> Graph:
        """Return the steps of all workers and the work of the servers."""
        step = TrainingStep(graph)
        at_most(MOST_BUILT, ((self.workers.n or 1) + 1) * len(graph), "ops")
        workers = self._workers(machine)
        externals = step.records.externals
        trained = {parameter.name for parameter in step.parameters}
        states = {tensor for op in step.updates for tensor in op.reads if tensor in externals} - trained
        records = Records(f"{step.records.name} (parameter server)", {}, {})
        placed = list(zip(step.updates, cycle(self.servers), strict=False))
        for update, server in placed:
            for tensor in filter(externals.__contains__, update.reads):
                records.externals[f"{server}/{tensor}"] = replace(externals[tensor], device=server)
        for worker in workers:
            for name, external in externals.items():
                if name not in trained and name not in states:
                    records.externals[f"{worker}/{name}"] = replace(external, device=None)
            pulled: dict[str, Edge] = {}  # read by a worker in place of a parameter, from the previous step
            for update, server in placed:
                name = f"{server}/{update.name}" + (f"/{worker}" if self.asynchronous else "")
                names = [parameter.name for parameter in step.parameters if parameter.update == update.name]
                pulled |= {tensor: (output_name(name, i), 1) for i, tensor in enumerate(names)}
            for record in step.work:
                inputs = [pulled.get(tensor, (f"{worker}/{tensor}", d)) for tensor, d in record.inputs]
                after: list[Edge] = [(f"{worker}/{name}", 0) for name, d in record.after if not d]
                name = f"{worker}/{record.name}"
                records.make(replace(record, name=name, inputs=inputs, after=after, device=worker))
        # Servers work in the order in which gradients come; it matters where ops run in program order.
        last = {parameter.update: k for k, parameter in enumerate(step.in_ready_order())}
        for update, server in sorted(placed, key=lambda pair: last.get(pair[0].name, -1)):
            self._serve(records, step, update, server, workers)
        return write(records)

    def _workers(self, machine: Machine | None) -> tuple[str, ...]:
        """Return the devices of the workers."""
        n = self.workers.n or 0
        if self.workers.names is not None or machine is None:
            return self.workers.names or gpus(n)
        free = [name for name in machine.accelerators if name not in self.servers]
        if len(free) < n:
            message = f"the machine has {format_count(len(free), 'accelerator')} for {n:,} workers"
            raise InputError(message, path=("workers",))
        return tuple(free[:n])

    def _serve(
        self, records: Records, step: TrainingStep, update: OpEntry, server: str, workers: Sequence[str]
    ) -> None:
        """Add a server's ops for the gradients of an update."""
        parameters = [parameter for parameter in step.parameters if parameter.update == update.name]

        def update_of(name: str, moved: dict[str, str], **attributes: str) -> None:
            record = replace(update, name=name, device=server)
            record.outputs = tuple(step.records.externals[parameter.name].nbytes for parameter in parameters)
            record.inputs = [(moved.get(tensor, f"{server}/{tensor}"), d) for tensor, d in update.inputs]
            record.after = [(f"{server}/{other}", d) for other, d in update.after]
            record.attributes = {**update.attributes, UPDATES: f"{server}/{update.name}", **attributes}
            records.make(record)

        if self.asynchronous:
            for worker in workers:
                pushed = {parameter.gradient: f"{worker}/{parameter.gradient}" for parameter in parameters}
                update_of(f"{server}/{update.name}/{worker}", pushed, **{PUSHED_BY: worker})
            return
        sums: dict[str, str] = {}
        for parameter in parameters:
            name = sums[parameter.gradient] = records.free(f"{server}/{parameter.name}/sum")
            read: list[Edge] = [(f"{worker}/{parameter.gradient}", 0) for worker in workers]
            sum_ = OpEntry(name, "add_n", read, [], (parameter.nbytes,), device=server, dtype=parameter.dtype)
            sum_.flops = (len(read) - 1) * parameter.elements
            sum_.bytes_read, sum_.bytes_written = len(read) * parameter.nbytes, parameter.nbytes
            records.ops[name] = sum_
        update_of(f"{server}/{update.name}", sums)
