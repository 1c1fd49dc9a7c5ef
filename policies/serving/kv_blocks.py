"""KV cache of a serving engine in blocks, with a prefix cache, like vLLM's block pool.

::

    free list   5  9  2  7 ...        taken from its head; freed blocks join its tail, a sequence's tail first
                                      a free block keeps its key until it is reused: a hit brings it back
    block       references  0: free   key  (previous block's key, its tokens); None: not full, or not kept

A key stands for the whole prefix that ends with its block, so that equal keys mean equal contents: it is the
number of the last segment of the prefix, and in `TOKEN_BITS` bits the number of that segment's tokens in it.
Two blocks may have the same key; the one published first is found.

Source: vLLM 0.19.0, ``vllm/v1/core/block_pool.py``, ``kv_cache_manager.py``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Final

from sim.base.errors import InputError

TOKEN_BITS: Final = 40


class KvBlocks:
    """Blocks of the KV cache of one replica.

    Parameters
    ----------
    blocks : int
        Number of blocks.
    block_size : int
        Tokens per block.
    reserved : int
        Number of first blocks that are never given out: vLLM keeps block 0 for padding.

    Raises
    ------
    InputError
        If no block is left to give out.

    Examples
    --------
    >>> cache = KvBlocks(blocks=5, block_size=16, reserved=1)
    >>> table = cache.take(2)
    >>> table, cache.free, cache.used
    ([1, 2], 2, 2)
    >>> cache.publish(table[0], 16)
    >>> cache.release(table)
    >>> cache.find([16, 32]), cache.free
    ([1], 4)
    """

    def __init__(self, blocks: int, block_size: int, reserved: int = 0) -> None:
        if blocks <= reserved:
            raise InputError(f"no block is left for keys and values; blocks: {blocks}, reserved: {reserved}")
        self.block_size, self.blocks = block_size, blocks
        self.usable = blocks - reserved
        # Only blocks ever given out, or reserved; all others are at the head of the free list.
        self.references = [0] * reserved
        self.key: list[int | None] = [None] * reserved
        self._free: OrderedDict[int, None] = OrderedDict()
        self._blocks: dict[int, tuple[int, ...]] = {}
        self._longest: dict[int, int] = {}  # segment → its last key that ever was

    @property
    def free(self) -> int:
        """Number of unreferenced blocks, including those with a key."""
        return len(self._free) + self.blocks - len(self.references)

    @property
    def used(self) -> int:
        """Number of referenced blocks."""
        return self.usable - self.free

    def blocks_for(self, tokens: int) -> int:
        """Return the number of blocks for `tokens` tokens."""
        return -(-tokens // self.block_size)

    def find(self, keys: Iterable[int]) -> list[int]:
        """Return the blocks of the longest prefix of `keys` that is in the cache."""
        return [self._blocks[key][0] for key in takewhile(self._blocks.get, keys)]

    def count_lost(self, keys: Iterable[int]) -> int:
        """Return how many leading keys are in the cache or were there once."""
        return sum(1 for _ in takewhile(lambda key: key <= self._longest.get(key >> TOKEN_BITS, -1), keys))

    def count_unreferenced(self, blocks: Iterable[int]) -> int:
        """Return how many of these blocks are in the free list."""
        references = self.references
        return sum(not references[block] for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to blocks that were found."""
        for block in blocks:
            if not self.references[block]:
                del self._free[block]
            self.references[block] += 1

    def take(self, count: int) -> list[int]:
        """Return `count` blocks from the head of the free list, which must have them, without their keys."""
        used = len(self.references)
        blocks = list(range(used, min(used + count, self.blocks)))
        self.references += [1] * len(blocks)
        self.key += [None] * len(blocks)
        for _ in range(count - len(blocks)):
            block = self._free.popitem(last=False)[0]
            self.references[block] = 1
            if (key := self.key[block]) is not None:
                self.key[block] = None
                self._blocks[key] = tuple(other for other in self._blocks[key] if other != block)
                if not self._blocks[key]:
                    del self._blocks[key]
            blocks.append(block)
        return blocks

    def publish(self, block: int, key: int) -> None:
        """Set the key of a full block, by which it is found from now on."""
        self.key[block] = key
        self._blocks[key] = (*self._blocks.get(key, ()), block)
        self._longest[key >> TOKEN_BITS] = max(key, self._longest.get(key >> TOKEN_BITS, 0))

    def release(self, table: Sequence[int]) -> None:
        """Release the blocks of a sequence, its tail first."""
        references = self.references
        for block in reversed(table):
            references[block] -= 1
            if not references[block]:
                self._free[block] = None
