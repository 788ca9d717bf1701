"""Quantities for people: bytes, counts and durations. Programs should not parse these texts."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["age_text", "bytes_text", "counted", "runs_text", "whole_units"]

_RUNS_SHOWN = 4
_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))


def bytes_text(count: int) -> str:
    """Return bytes in the largest unit in which they are at least 1.

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


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    Examples:
        >>> counted(1, "row"), counted(0, "row"), counted(12_000, "row")
        ('1 row', '0 rows', '12,000 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def whole_units(ms: int) -> str:
    """Return a time in the largest unit that expresses it exactly; a negative one has no end.

    Examples:
        >>> whole_units(-1), whole_units(7 * 86_400_000), whole_units(5_400_000)
        ('for ever', '7 d', '90 min')
    """
    if ms < 0:
        return "for ever"
    name, unit_ms = next((name, unit_ms) for name, unit_ms in _UNITS_MS if ms % unit_ms == 0)
    return f"{ms // unit_ms:,} {name}"


def age_text(ms: int) -> str:
    """Return a duration, rounded down to one unit.

    Examples:
        >>> age_text(4_200), age_text(190_000), age_text(7_500_000), age_text(200_000_000)
        ('4 s', '3 min', '2 h', '2 d')
    """
    for name, unit_ms in _UNITS_MS:
        if ms >= unit_ms and name != "ms":
            return f"{ms // unit_ms} {name}"
    return "0 s"


def runs_text(versions: Sequence[int]) -> str:
    """Return version numbers as runs, only the newest few.

    Examples:
        >>> runs_text([7, 3, 4, 5]), runs_text([]), runs_text(range(1, 40, 2))
        ('3-5, 7', '', '..., 33, 35, 37, 39')
    """
    runs: list[tuple[int, int]] = []
    for version in sorted(versions):
        follows = runs and runs[-1][1] == version - 1
        runs[-1:] = [(runs[-1][0], version)] if follows else [*runs[-1:], (version, version)]
    texts = [str(begin) if begin == end else f"{begin}-{end}" for begin, end in runs]
    return ", ".join(["..."] * (len(texts) > _RUNS_SHOWN) + texts[-_RUNS_SHOWN:])
