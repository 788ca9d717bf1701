"""The application of the benchmark of serving with a very cheap model."""
