"""The application of the benchmark of computed features that follows actions to values."""
