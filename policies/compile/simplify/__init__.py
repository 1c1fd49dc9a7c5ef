"""Rewrites that leave less to compute: the same results from fewer or cheaper ops."""
