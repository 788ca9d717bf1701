"""Topics and their implementations."""
