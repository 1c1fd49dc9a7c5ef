"""Durations of collectives: by formula, by NCCL's choice, by measurement, as flows."""
