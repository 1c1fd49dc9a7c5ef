"""What may be said of a device, a link and a machine, and how it is read."""
