"""`streamlearn bench-serve`."""

__all__: list[str] = []
