"""HistoryRange: the impressions that a backfill makes samples of, by event time or by records.

It reads no topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from streamlearn.errors import UsageError

__all__ = ["HistoryRange"]

_HELP = "write PARTITION:OFFSET, separated by commas, such as 0:1200,1:1180"


@dataclass(frozen=True)
class HistoryRange:
    """A part of history; by default all of it.

    Attributes:
        begin_ms: Event time of the first impressions.
        end_ms: Event time of the end, exclusive.
        from_offsets: First offsets of impressions, by partition.
        to_offsets: End offsets, exclusive, by partition. Partitions in neither are left out; of a partition in one of
            them, the other bound is where its records begin or end.

    Raises:
        UsageError: It ends before it begins; or both times and offsets are given.
    """

    begin_ms: int | None = None
    end_ms: int | None = None
    from_offsets: Mapping[int, int] = field(default_factory=dict)
    to_offsets: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.by_offsets and (self.begin_ms, self.end_ms) != (None, None):
            message = "a backfill takes either event times or offsets, not both"
            raise UsageError(message, help="give --from and --to, or --from-offsets and --to-offsets")
        if self.begin_ms is not None and self.end_ms is not None and self.begin_ms >= self.end_ms:
            message = f"a backfill from {self.begin_ms} ms to {self.end_ms} ms"
            raise UsageError(message, help="it ends before it begins: give the earlier event time first")
        for partition in sorted(self.from_offsets.keys() & self.to_offsets.keys()):
            begin, end = self.from_offsets[partition], self.to_offsets[partition]
            if begin >= end:
                message = f"a backfill of partition {partition} from offset {begin} to {end}"
                raise UsageError(message, help="it ends before it begins; the end offset is exclusive")

    @property
    def by_offsets(self) -> bool:
        """Whether the range names records, and not event times."""
        return bool(self.from_offsets or self.to_offsets)

    @classmethod
    def of(
        cls, begin: str | None = None, end: str | None = None, *, from_offsets: str = "", to_offsets: str = ""
    ) -> HistoryRange:
        """Parse a range: times as ISO 8601, UTC by default, and offsets as `PARTITION:OFFSET,PARTITION:OFFSET`.

        Raises `UsageError` if a time, an offset or the range is invalid.

        Examples:
            >>> HistoryRange.of("1970-01-01T00:00:01", "1970-01-01T01:00:02+01:00")
            HistoryRange(begin_ms=1000, end_ms=2000, from_offsets={}, to_offsets={})
            >>> HistoryRange.of(from_offsets="0:10,1:20", to_offsets="1:25").from_offsets
            {0: 10, 1: 20}
        """
        begin_ms, end_ms = (None if text is None else _time_ms(text) for text in (begin, end))
        return cls(begin_ms, end_ms, _offsets(from_offsets), _offsets(to_offsets))


def _time_ms(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        message = f"invalid time {text!r}"
        raise UsageError(message, help="write it as 2022-04-25 or 2022-04-25T08:00:00+08:00") from error
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1_000)


def _offsets(text: str) -> dict[int, int]:
    offsets: dict[int, int] = {}
    for part in text.split(",") if text else ():
        partition, _, offset = part.strip().partition(":")
        if not (partition.isdecimal() and offset.isdecimal()):
            message = f"invalid partition and offset {part.strip()!r}"
            raise UsageError(message, help=_HELP)
        if int(partition) in offsets:
            message = f"partition {int(partition)} has two offsets in {text!r}"
            raise UsageError(message, help=_HELP)
        offsets[int(partition)] = int(offset)
    return offsets
