"""The partitioner: which partition a key belongs to, as every Kafka client with default settings says."""

from __future__ import annotations

from streamlearn.native import native

__all__ = ["partition_of"]


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key: murmur2 of it, made positive, modulo the number of partitions.

    Examples:
        >>> partition_of(b"request-1", 4)
        3
    """
    return native.partition_of(key, partitions)
