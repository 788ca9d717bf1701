"""The parts of the benchmark of the whole loop."""
