"""What was found, in words with names."""
