"""Cloze test in the format of LAMBADA, drawn from held-out documents."""
