"""Transfers over links: one after another, in chunks, or sharing the bandwidth fairly, on one machine."""

from devices.network.carrier import Carrier, make_network

__all__ = ["Carrier", "make_network"]
