"""Pointer: which version should be served, who may move it, and the registry that tells nodes."""

__all__: list[str] = []
