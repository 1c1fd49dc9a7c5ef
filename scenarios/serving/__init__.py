"""Serving: requests in place of steps, on replicas of one model (``docs/serving.md``)."""
