"""HistoryRange: which impressions a backfill makes samples of: those of some event time, or those of some records.

It reads no topic: what of it there is, others look up.
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
    """A part of history. Everything there is, unless something is said.

    Attributes:
        begin_ms: Event time: impressions from here on; None: from the first.
        end_ms: And up to here, without; None: up to the last.
        from_offsets: By partition: impressions of records from here on.
        to_offsets: By partition: and up to here, without. Partitions that neither names are left out; of one that one
            of them names, the other bound is where its records begin or end.

    Raises:
        UsageError: It ends before it begins; or both times and offsets are given.
    """

    begin_ms: int | None = None
    end_ms: int | None = None
    from_offsets: Mapping[int, int] = field(default_factory=dict)
    to_offsets: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
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
        """Whether records are named, and not event times."""
        return bool(self.from_offsets or self.to_offsets)

    @classmethod
    def of(
        cls, begin: str | None = None, end: str | None = None, *, from_offsets: str = "", to_offsets: str = ""
    ) -> HistoryRange:
        """A range as people write it.

        Args:
            begin: ISO 8601; UTC unless it says so.
            end: The same.
            from_offsets: `PARTITION:OFFSET,PARTITION:OFFSET`.
            to_offsets: The same.

        Raises:
            UsageError: Something is no time, or no offset; or it cannot be.

        Examples:
            >>> HistoryRange.of("1970-01-01T00:00:01", "1970-01-01T01:00:02+01:00")
            HistoryRange(begin_ms=1000, end_ms=2000, from_offsets={}, to_offsets={})
            >>> HistoryRange.of(from_offsets="0:10,1:20", to_offsets="1:25").from_offsets
            {0: 10, 1: 20}
        """
        begin_ms, end_ms = (None if one is None else _time_ms(one) for one in (begin, end))
        return cls(begin_ms, end_ms, _offsets(from_offsets), _offsets(to_offsets))


def _time_ms(text: str) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        message = f"invalid time {text!r}"
        raise UsageError(message, help="write it as 2022-04-25 or 2022-04-25T08:00:00+08:00") from error
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1_000)


def _offsets(text: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for part in text.split(",") if text else ():
        partition, _, offset = part.strip().partition(":")
        if not (partition.isdecimal() and offset.isdecimal()):
            message = f"invalid partition and offset {part.strip()!r}"
            raise UsageError(message, help=_HELP)
        if int(partition) in found:
            message = f"partition {int(partition)} has two offsets in {text!r}"
            raise UsageError(message, help=_HELP)
        found[int(partition)] = int(offset)
    return found
