"""The partitioner: which partition a key belongs to, as every Kafka client with default settings says."""

from __future__ import annotations

__all__ = ["partition_of"]

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_WORD = 0xFFFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key: murmur2 of it, made positive, modulo the number of partitions.

    Examples:
        >>> partition_of(b"request-1", 4)
        3
    """
    return (_murmur2(key) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    value = _SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _WORD
        word = (word ^ word >> 24) * _MULTIPLIER & _WORD
        value = value * _MULTIPLIER & _WORD ^ word
    if whole != len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _WORD
    value = (value ^ value >> 13) * _MULTIPLIER & _WORD
    return value ^ value >> 15
