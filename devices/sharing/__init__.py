"""How those who want the same thing share it: a clock of their own, fair rates."""
