"""The fast path: plain Python over int64 columns, which Cython compiles unchanged where it can."""
