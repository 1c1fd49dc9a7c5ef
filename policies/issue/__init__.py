"""Issue policies: which eligible task a free issuer takes next."""
