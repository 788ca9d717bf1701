"""The parts of the benchmark of ingest."""
