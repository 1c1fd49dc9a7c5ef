"""What a Chrome trace is that no GPU's work is in, in words: many programs write that format.

::

    no kernel, copy or fill of a GPU in the trace; it looks like one of TensorFlow or JAX
    (2,310 events: 2,214 Op, 96 without a category)

Sources: PyTorch (torch/profiler, kineto), TensorFlow (python/client/timeline.py; XLA's
trace_events_json.cc), Chromium (base/trace_event), clang (``-ftime-trace``, TimeProfiler.cpp), VizTracer,
Horovod (common/timeline.cc), torch_npu (profiler/analysis/prof_parse).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final

from scenarios.importers.files import StrPath
from scenarios.importers.streamed_json import items

__all__ = ["what_it_is"]

_SIGNS: Final = (
    (
        r"c:(cuda_runtime|cuda_driver|runtime|hip_runtime|xpu_runtime|privateuse1_runtime)$",
        "it has calls of the GPU's runtime but not what they launched: the profiler could not watch the GPU "
        "(CUPTI, or its permission)",
    ),
    (r"p:(Ascend Hardware|CANN)$", "it looks like torch_npu's (Ascend), which has other events"),
    (r"c:mtia_", "it is of an accelerator that is no GPU (MTIA), which has other events"),
    (
        r"c:(cpu_op|operator|python_function)$",
        "it is PyTorch's profile of the CPU alone: profile with ProfilerActivity.CUDA, too",
    ),
    (r"p:/(job:|device:|host:)", "it looks like one of TensorFlow or JAX"),
    (r"c:(.*,)?(devtools\.timeline|blink|v8|toplevel|disabled-by-default)", "it looks like a browser's"),
    (r"k:beginningOfTime$", "it looks like clang's (-ftime-trace)"),
    (r"k:viztracer_metadata$", "it looks like VizTracer's"),
    (r"n:NEGOTIATE_", "it looks like Horovod's timeline"),
)
"""What tells who wrote a trace: a key of the file (k), a category (c), name (n) or process (p) of an event;
the first that is found."""

_SHOWN: Final = 5


def what_it_is(path: StrPath) -> str:
    """Return what to add to the message that no task of a GPU is in a trace.

    Parameters
    ----------
    path : path
        Of Chrome trace events: an object with ``traceEvents``, or a list of them.
    """
    others: dict[str, Any] = {}
    counted: Counter[str] = Counter()
    names: dict[str, None] = {}
    processes: dict[str, None] = {}
    for event in items(path, "a trace", "traceEvents", others):
        name, args = event.get("name"), event.get("args")
        counted[str(event.get("cat", ""))] += 1
        names[f"n:{name!s:.40}"] = None
        if name == "process_name" and isinstance(args, dict):
            processes[f"p:{args.get('name')}"] = None
    if not counted:
        return ", which has no events"
    keys = (f"k:{key}" for key in others)
    signs = "\n".join([*keys, *(f"c:{category}" for category in counted), *names, *processes])
    looks = next((words for sign, words in _SIGNS if re.search(f"^{sign}", signs, re.MULTILINE)), None)
    most = counted.most_common(_SHOWN)
    shown = [f"{n:,} {category[:40] or 'without a category'}" for category, n in most]
    shown += ["..."] * (len(counted) > _SHOWN)
    said = f"; {looks}" if looks else ""
    total = counted.total()
    return f"{said} ({total:,} event{'s' * (total != 1)}: {', '.join(shown)})"
