"""Pointer: the version to serve, the moves that change it, and the registry that informs nodes."""

__all__: list[str] = []
