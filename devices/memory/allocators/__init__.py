"""The allocators, one a file, and what those with segments share."""
