"""Features, labels and the order of their numbers."""
