"""Replica: a node that follows the pointer and brings versions into its tables."""

__all__: list[str] = []
