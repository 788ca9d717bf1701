"""Load: requests put on a node, and the highest rate that it holds."""

__all__: list[str] = []
