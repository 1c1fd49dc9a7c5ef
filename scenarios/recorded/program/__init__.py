"""The ops of a recorded program: what they are, what they are called, and how some are taken out."""
