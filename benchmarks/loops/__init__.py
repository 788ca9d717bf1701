"""Loops: what the benchmark of the whole loop is made of."""
