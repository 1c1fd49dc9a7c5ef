"""A what-if held against reality: two recordings of one program under two settings, one predicted from the other."""
