"""Nodes: what the benchmark of serving is made of."""
