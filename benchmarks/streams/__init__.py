"""Streams: what the benchmark of ingest is made of."""
