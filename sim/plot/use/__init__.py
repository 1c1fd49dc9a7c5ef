"""How far a run used its machine: time of devices, bandwidth of links, ops under the roofs of devices."""
