"""How ranks are numbered, who communicates with whom, and how rewrites for ranks follow one another."""
