"""Serving: which requests run in the next step, and on which replica (``docs/serving.md``)."""
