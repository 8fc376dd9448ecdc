"""seqfield."""
