"""Serving: the requests that run in the next step, and their replicas (``docs/serving.md``)."""
