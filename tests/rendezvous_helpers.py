"""What a run says about each rendezvous."""

from __future__ import annotations

from sim import Trace


def rendezvous_keys(trace: Trace) -> dict[str, tuple[list[int], list[int]]]:
    """Return for each rendezvous key of a run when its Sends ended and its Recvs started, in ns.

    Parameters
    ----------
    trace : Trace
        Of a partitioned graph.

    Returns
    -------
    dict
        ``source;destination;tensor;frame:iteration`` to (ends of Sends, starts of Recvs); one of each.
    """
    graph, tasks = trace.job.graph, trace.tasks
    keys: dict[str, tuple[list[int], list[int]]] = {}
    frames = (
        [trace.frames[code] for code in tasks["frame"].tolist()] if "frame" in tasks else [""] * len(trace)
    )
    columns = (tasks[name].tolist() for name in ("op", "iteration", "start_ns", "end_ns"))
    for op, repetition, start, end, frame in zip(*columns, frames, strict=True):
        if graph.kind(op) in ("send", "recv"):
            key = f"{graph.attributes[op]['key']};{frame or f'0:{repetition}'}"
            sends, recvs = keys.setdefault(key, ([], []))
            (sends if graph.kind(op) == "send" else recvs).append(end if graph.kind(op) == "send" else start)
    return keys
