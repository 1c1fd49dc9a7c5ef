"""What a message costs besides latency and bandwidth, by the software that carries it.

::

    local   nothing: memory, NVLink, PCIe
    rdma    the network card reads the memory by itself; a message waits for it to be told
    tcp     a thread of the host copies the bytes through the kernel, as fast as one core can

Sources. tcp: 24 us one way for 64 bytes between two Linux servers (Belay et al., "IX: A Protected Dataplane
Operating System for High Throughput and Low Latency", OSDI 2014, section 5.2); 42 Gb/s for one flow, with one
core busy at the receiver (Cai et al., "Understanding Host Network Stack Overheads", SIGCOMM 2021, section
3.1).
rdma: 1 us, half of a round trip of about 2 us (Kalia et al., "Using RDMA Efficiently for Key-Value Services",
SIGCOMM 2014, figure 2); ``ib_send_lat`` counts 0.8 us one way for 32 bytes and 1.6 us for 1 KiB over a
reliable connection (git.dennispotter.eu/Dennis/masters-thesis, table ``mtu_performance``). The latency of
cables and switches is the link's own. What a GPU waits for besides, until its proxy thread on the host has
posted a message and a flag has come back, is no part of it: NCCL counts 2.7 to 14 us for a step between nodes
(`devices.collectives.nccl.constants.HARDWARE_US`), for which collectives have a ``latency`` of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["TRANSPORTS"]

TRANSPORTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "local": {},
    "rdma": {"message_overhead": 1_000},
    "tcp": {
        "message_overhead": 24_000,
        "connection_bandwidth": 42 * 10**9 // 8,
        "host_copies": True,
    },
}
"""Name of a transport -> keys of a link, read."""
