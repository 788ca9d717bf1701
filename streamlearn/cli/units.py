"""Quantities as people read them: bytes, spans of time, points in time. They are for eyes, not to be parsed."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["bytes_text", "retention_text", "time_text"]

_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))


def bytes_text(count: int) -> str:
    """Bytes in the largest unit of which there is at least one.

    Examples:
        >>> bytes_text(900_000), bytes_text(1 << 20), bytes_text(17)
        ('878.9 KiB', '1.0 MiB', '17 B')
    """
    if count < 1024:
        return f"{count} B"
    size, unit = count / 1024, 0
    while size >= 1024 and unit < 3:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def retention_text(retention_ms: int) -> str:
    """How long records are kept, in the largest unit that says it exactly.

    Examples:
        >>> retention_text(-1), retention_text(7 * 86_400_000), retention_text(5_400_000)
        ('for ever', '7 d', '90 min')
    """
    if retention_ms < 0:
        return "for ever"
    name, unit_ms = next((name, unit_ms) for name, unit_ms in _UNITS_MS if retention_ms % unit_ms == 0)
    return f"{retention_ms // unit_ms:,} {name}"


def time_text(time_ms: int) -> str:
    """A point in time, UTC, to the second.

    Examples:
        >>> time_text(1_650_813_408_456)
        '2022-04-24 15:16:48'
    """
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
