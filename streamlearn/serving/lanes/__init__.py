"""Lanes: threads or processes that score one TensorBatch at a time."""

__all__: list[str] = []
