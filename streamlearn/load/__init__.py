"""Load: requests sent to a node, and the highest rate that it sustains."""

__all__: list[str] = []
