"""Times of day as people write and read them, in UTC. Programs use milliseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from streamlearn.errors import UsageError

__all__ = ["parse_duration_ms", "parse_time_ms", "time_text"]


_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def time_text(time_ms: int) -> str:
    """Return a time in UTC, to the second; one without a year as milliseconds.

    Examples:
        >>> time_text(1_650_813_408_456)
        '2022-04-24 15:16:48'
        >>> time_text(1 << 62)
        '4611686018427387904 ms'
    """
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


def parse_duration_ms(text: str) -> int:
    """Parse a duration such as 30s, 1m, 6h or 1d into milliseconds.

    Raises:
        UsageError: The text is not a duration above zero.

    Examples:
        >>> parse_duration_ms("90s"), parse_duration_ms("1d")
        (90000, 86400000)
    """
    number, unit_ms = text[:-1], _UNITS_MS.get(text[-1:])
    if not (number.isascii() and number.isdigit() and len(number) <= 9 and int(number) and unit_ms):
        message = f"{text!r} is not a duration"
        raise UsageError(message, help="give a whole number with s, m, h or d, such as 1m")
    return int(number) * unit_ms


def parse_time_ms(text: str, now: datetime) -> int:
    """Parse a time into milliseconds since 1970.

    The text is `2026-11-20T12:20:00`, `12:20` or `12:20:05` (the last such time before `now`), or milliseconds since
    1970. Without an offset it is UTC.

    Raises:
        UsageError: The text is not a time.

    Examples:
        >>> noon = datetime(2026, 11, 20, 12, tzinfo=UTC)
        >>> parse_time_ms("11:30", noon) == parse_time_ms("2026-11-20T11:30:00+00:00", noon)
        True
        >>> parse_time_ms("12:30", noon) == parse_time_ms("2026-11-19 12:30", noon)
        True
        >>> parse_time_ms("1795303584284", noon)
        1795303584284
    """
    if text.isdigit() and len(text) <= 16:
        return int(text)
    is_of_day = len(text) <= 8 and ":" in text
    try:
        parsed = datetime.fromisoformat(f"{now.astimezone(UTC).date()}T{text:0>5}" if is_of_day else text)
    except ValueError:
        message = f"{text!r} is not a time"
        raise UsageError(message, help="give 2026-11-20T12:20:00, 12:20, or milliseconds since 1970; UTC") from None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    if is_of_day and parsed > now:
        parsed -= timedelta(days=1)
    return round(parsed.timestamp() * 1000)
