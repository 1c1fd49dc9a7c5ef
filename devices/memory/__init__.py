"""Memory of a device: who gets which bytes, and what happens when they run out.

Pure state machines behind one interface (`devices.memory.base`), chosen by name:

=============  ===================================================================================
``pool``       one arena by best fit, exact; limits for those who share it, virtual devices
``bfc``        TensorFlow's best fit with coalescing
``caching``    PyTorch's caching allocator for CUDA
``counted``    device malloc and free for each tensor, a counter against a limit
``planned``    offsets decided before the run: TVM's tokens, greedy by size, the optimum
``scratchpad`` the software-managed SRAM of an NPU, with tiles
=============  ===================================================================================
"""

from devices.memory.base import Allocator, Block, Owner, Span, StreamEvent
from devices.memory.bfc import BfcAllocator
from devices.memory.caching import CachingAllocator
from devices.memory.counted import CountedAllocator
from devices.memory.device import DeviceMemory
from devices.memory.oom import largest_holders, out_of_memory
from devices.memory.pool import PoolAllocator, virtual_devices

__all__ = [
    "Allocator",
    "BfcAllocator",
    "Block",
    "CachingAllocator",
    "CountedAllocator",
    "DeviceMemory",
    "Owner",
    "PoolAllocator",
    "Span",
    "StreamEvent",
    "largest_holders",
    "out_of_memory",
    "virtual_devices",
]
