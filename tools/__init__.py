"""Tools for developers and tests, which are not part of the installed package."""

__all__: list[str] = []
