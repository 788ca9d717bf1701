"""The partitioner: the partition of a key, as Kafka clients with default settings choose it."""

from __future__ import annotations

from streamlearn.native import native

__all__ = ["partition_of"]


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key: its murmur2 hash, made positive, modulo the number of partitions.

    Examples:
        >>> partition_of(b"request-1", 4)
        3
    """
    return native.partition_of(key, partitions)
