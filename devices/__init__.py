"""Hardware that takes time and space: devices, links and memories, from descriptions to what runs on them."""
