"""The application of the benchmark of serving: attention over a history of 50 items."""
