"""The parts of the benchmark of retrieval."""
