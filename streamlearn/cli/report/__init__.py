"""`streamlearn report`."""

__all__: list[str] = []
