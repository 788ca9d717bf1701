"""Verbs that run a part of the loop."""

__all__: list[str] = []
