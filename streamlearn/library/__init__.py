"""The library of items: all that an application can recommend, learned from what is shown and from their topic."""

__all__: list[str] = []
