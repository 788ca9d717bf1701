"""`streamlearn doctor`."""

__all__: list[str] = []
