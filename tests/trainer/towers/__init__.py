"""The towers of retrieval."""
