"""The fast path: Python over int64 columns, which Cython compiles unchanged where there is a compiler."""
