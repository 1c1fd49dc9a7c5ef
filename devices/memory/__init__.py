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

from devices.memory.allocator import Allocator as Allocator
from devices.memory.bfc import BfcAllocator as BfcAllocator
from devices.memory.caching import CachingAllocator as CachingAllocator
from devices.memory.counted import CountedAllocator as CountedAllocator
from devices.memory.device_memory import Block as Block
from devices.memory.device_memory import DeviceMemory as DeviceMemory
from devices.memory.device_memory import Owner as Owner
from devices.memory.memory_replay import replay as replay
from devices.memory.planned import PlannedAllocator as PlannedAllocator
from devices.memory.pool import PoolAllocator as PoolAllocator
from devices.memory.pool import ScratchpadAllocator as ScratchpadAllocator
from devices.memory.pool import VirtualDevices as VirtualDevices
from devices.memory.registry import allocators as allocators
from devices.memory.registry import make_allocator as make_allocator
from devices.memory.registry import read_allocator as read_allocator
from devices.memory.trace_readers import MemoryEvent as MemoryEvent
from devices.memory.trace_readers import read_events as read_events
