"""Near-line retrieval: lists of candidates that are refreshed for users who just acted, ahead of their requests."""

__all__: list[str] = []
