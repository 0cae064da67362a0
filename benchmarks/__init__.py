"""Side-by-side measurements: one script a claim, ours and the peer in turn in one process tree."""
