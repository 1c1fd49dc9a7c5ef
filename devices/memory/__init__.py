"""Memory of a device: allocation of its bytes, and running out of them.

Pure state machines behind one interface (`devices.memory.allocator`), chosen by name (`make_allocator`);
other packages add their own as entry points of the group ``sim.allocators``:

==============  ==================================================================================
``pool``        one arena by best fit, exact; limits for its sharers, virtual devices
``bfc``         TensorFlow's best fit with coalescing
``caching``     PyTorch's caching allocator for CUDA
``counted``     device malloc and free per tensor, a counter against a limit
``planned``     offsets decided before the run: TVM's two plans, greedy by size
``scratchpad``  the software-managed SRAM of an NPU, with tiles
==============  ==================================================================================

`replay` runs a recorded trace (`read_events`) through any of them.
"""

from devices.memory.allocator import Allocator
from devices.memory.bfc import BfcAllocator
from devices.memory.caching import CachingAllocator
from devices.memory.counted import CountedAllocator
from devices.memory.device_memory import Block, DeviceMemory, Owner
from devices.memory.memory_replay import replay
from devices.memory.planned import PlannedAllocator
from devices.memory.pool import PoolAllocator, ScratchpadAllocator, VirtualDevices
from devices.memory.registry import allocators, make_allocator, read_allocator
from devices.memory.trace_readers import MemoryEvent, read_events

__all__ = [
    "Allocator",
    "BfcAllocator",
    "Block",
    "CachingAllocator",
    "CountedAllocator",
    "DeviceMemory",
    "MemoryEvent",
    "Owner",
    "PlannedAllocator",
    "PoolAllocator",
    "ScratchpadAllocator",
    "VirtualDevices",
    "allocators",
    "make_allocator",
    "read_allocator",
    "read_events",
    "replay",
]
