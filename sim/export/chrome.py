"""Timelines for Perfetto and chrome://tracing, in the form that tools for PyTorch profiles read.

::

    hosts     gpu0/host   ▇launch▇▇launch▇          one process for the host threads
                             │ac2g   ╲ac2g
    gpu0      stream 0       ▇▇▇▇conv▇▇▇            one process a device, one thread a stream (a worker
              stream 1                │▇▇▇matmul▇   of a CPU), counters: memory, tasks running
                                  data└►
    links     wire        ▇a▇                       one thread a link; a second one where transfers
              wire (2)      ▇b▇                     overlap on a link that they share

Slices have the categories that PyTorch's profiler writes (``cuda_runtime`` for a launch, ``kernel`` and
``gpu_memcpy`` for what runs, ``cpu_op`` for a worker's ops); a launch is tied to its kernel by
``correlation`` and a flow of category ``ac2g``. Flows of category ``data`` lead from producers to
consumers on other lanes.

The argument ``stream`` is counted over the machine, because tools that expect one GPU in a file would take
streams of the same number for one.

Format: "Trace Event Format" (Google, 2016); times in µs with three decimals, so whole ns. What viewers ask
for: threads numbered from 1 (Perfetto takes 0 for the idle thread), slices of a thread that nest, the end
of a flow with ``"bp": "e"``, the blank in ``"distributedInfo": {"rank": 0}`` (HTA looks for that text).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from sim.export.chrome_lines import lines_of
from sim.record.record import Record
from sim.words.atomic_files import atomic_text

__all__ = ["write_chrome"]

_HEAD: Final = (
    '{"schemaVersion":1,"distributedInfo": {"rank": 0},"deviceProperties":[],"displayTimeUnit":"ns",'
    '"traceEvents":[\n'
)


def write_chrome(
    trace: Record | Mapping[str, Record], path: str | os.PathLike[str], *, arrows: int = 20_000
) -> None:
    """Write one or several traces as Chrome JSON, gzipped when the name ends in ``.gz``.

    Parameters
    ----------
    trace : Trace, or mapping of str to Trace
        Of several, each gets processes of its own, whose names begin with its label.
    path : path
        ``.json`` or ``.json.gz``.
    arrows : int
        At most so many arrows from producers to consumers for each trace; a viewer is slow with more.

    Raises
    ------
    InputError
        A directory that does not exist.
    """
    traces = {"": trace} if isinstance(trace, Record) else trace
    with atomic_text(path) as file:
        file.write(_HEAD)
        before = ""
        for run, (label, each) in enumerate(traces.items()):
            for line in lines_of(each, most=arrows, run=run, label=label):
                file.write(before)
                file.write(line)
                before = ",\n"
        file.write("\n]}\n")
