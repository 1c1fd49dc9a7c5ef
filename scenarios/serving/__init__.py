"""Serving: requests instead of steps, on replicas of one model (``docs/serving.md``)."""
