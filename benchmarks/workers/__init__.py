"""The parts of `benchmarks workers`."""
