"""The nouns and protocols that the engine, the devices and the policies share.

::

    Machine ── Device ── streams (queues that start in order)
       │          └───── issuers (who put tasks on streams; a CPU worker also runs what it takes)
       └────── Link      (carries bytes between two devices)

    Job  = graph + machine + decisions made before time 0 (placement, streams, program order)
    Task = one execution of an op; the engine moves it  ready → issued → start → end
    Policy: told what happened, asked what next; it holds no clock and never waits

Nothing here takes time or decides anything: devices (package `devices`) do the one, policies
(package `policies`) the other, and `sim.engine` runs them against each other.
"""

from __future__ import annotations

from sim.context import Context
from sim.device import CostModel, Device
from sim.job import Linearizer, Placement, StreamAssignment
from sim.machine import Host, Link, Machine, Network
from sim.policy import Policy
from sim.processor import MANAGED, WAIT, Processor
from sim.task import Issuer, Task

__all__ = [
    "MANAGED",
    "WAIT",
    "Context",
    "CostModel",
    "Device",
    "Host",
    "Issuer",
    "Linearizer",
    "Link",
    "Machine",
    "Network",
    "Placement",
    "Policy",
    "Processor",
    "StreamAssignment",
    "Task",
]
