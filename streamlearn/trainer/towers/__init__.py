"""The towers of retrieval: they learn from the positives of each step, beside the ranking model."""

__all__: list[str] = []
