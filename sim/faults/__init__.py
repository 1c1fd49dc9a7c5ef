"""Parts of a machine that fail, slow down and come back: when, how fast they are, and who notices."""
