"""Verbs on the versions of a model and its pointer."""

__all__: list[str] = []
