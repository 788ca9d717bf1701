"""Serving: versions answer requests."""

__all__: list[str] = []
