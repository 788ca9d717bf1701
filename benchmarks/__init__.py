"""Benchmarks: `python -m benchmarks NAME [--quick]`; every number in the documentation comes from here."""
