"""Graphs: exported graphs compiled for the shapes that come."""

__all__: list[str] = []
