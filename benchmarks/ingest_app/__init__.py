"""The application of the benchmark of ingest."""
