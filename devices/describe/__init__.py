"""What may be said of devices, links and hosts, and how it is read."""
