"""Peers, each in its own environment: `python -m benchmarks.peers build | run`."""
