"""What is in a Chakra execution trace, and what it leaves out."""
