"""Context parallelism: ranks share a sequence, and exchange keys and values, or heads."""
