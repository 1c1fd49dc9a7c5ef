"""Which tasks become eligible when one ends: counters, tokens, rendezvous."""
