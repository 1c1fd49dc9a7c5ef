"""How long a collective takes: by formula, by NCCL's choice, by measurement, as flows."""
