"""The allocators, each a state machine of its own."""
