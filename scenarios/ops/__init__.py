"""What ops cost by their shapes, and ops that stand for other ops."""
