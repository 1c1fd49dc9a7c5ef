"""What profilers record, event by event: fields, rows, and whose trace it is."""
