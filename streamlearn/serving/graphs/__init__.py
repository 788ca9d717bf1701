"""Graphs: exported graphs, compiled for the shapes of requests."""

__all__: list[str] = []
