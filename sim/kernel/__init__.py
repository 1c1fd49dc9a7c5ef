"""The kernel: the fast path for what is data (`sim.kernel.loop` is its page)."""
