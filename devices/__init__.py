"""Hardware that takes time and space: devices, links and memories, from description to simulation."""
