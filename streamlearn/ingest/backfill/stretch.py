"""Stretch: a part of history by event time, which a backfill joins by itself; what it needs, and what is its own. Pure.

An impression is of one stretch. To join it as if nothing had been cut, events around the stretch are needed as well:
actions for as long as windows are open, and impressions whose actions would be orphans otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.errors import UsageError
from streamlearn.ingest.join.columns import Joined, LetterKind, Letters
from streamlearn.ingest.join.plan import JoinPlan
from streamlearn.native import native

__all__ = ["NO_INGEST", "Stretch", "cut_stretches", "own_of", "stretch_of"]

Int64s = npt.NDArray[np.int64]

NO_INGEST = 1 << 62
"""Where no ingest runs beside, it bounds nothing."""
_STRETCHES_MAX = 100_000  # 270 years of days; each is looked up in every partition


@dataclass(frozen=True)
class Stretch:
    """What one join of a backfill reads.

    Attributes:
        begin_ms: Impressions from here on make samples.
        end_ms: And up to here, without.
        impressions_ms: First and last event time of impressions that are needed.
        actions_ms: First and last event time of actions that are needed.
        records: Partition, first offset and the one behind the last, of the impressions that make samples; None: of any
            record.
        live_ms: The watermark of the ingest that runs beside: a later one would refuse its rows.
    """

    begin_ms: int
    end_ms: int
    impressions_ms: tuple[int, int]
    actions_ms: tuple[int, int]
    records: tuple[tuple[int, int, int], ...] | None = None
    live_ms: int = NO_INGEST

    @property
    def watermark_ms(self) -> int:
        """What its last message says: every row of the stretch is settled, and what ingest still makes is not late."""
        return min(self.actions_ms[1], self.live_ms)

    def is_own(self, times_ms: Int64s) -> npt.NDArray[np.bool_]:
        """Which event times are of this stretch and of no other."""
        return (times_ms >= self.begin_ms) & (times_ms < self.end_ms)

    def has(self, partitions: npt.NDArray[np.int32], offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Which records' impressions make samples here, if their times do."""
        if self.records is None:
            return np.ones(len(offsets), np.bool_)
        found = np.zeros(len(offsets), np.bool_)
        for partition, begin, end in self.records:
            found |= (partitions == partition) & (offsets >= begin) & (offsets < end)
        return found


def stretch_of(plan: JoinPlan, begin_ms: int, end_ms: int) -> Stretch:
    """A stretch with what is around it.

    Args:
        plan: Windows, and how long an action waits.
        begin_ms: Where it begins.
        end_ms: Where it ends.
    """
    window_ms = plan.longest_window_ms
    # An action waits for its impression up to one slice longer than it must.
    early_ms = round(1_000 * plan.settings.orphan_wait_s) + plan.slice_ms
    return Stretch(
        begin_ms, end_ms, (begin_ms - window_ms, end_ms + early_ms), (begin_ms - early_ms, end_ms + window_ms)
    )


def cut_stretches(begin_ms: int, end_ms: int, stretch_ms: int) -> list[tuple[int, int]]:
    """Where stretches begin and end: at multiples of their length, so that a backfill that is run again has the same.

    Raises:
        UsageError: There are too many, as where one event has a time of the far future.

    Examples:
        >>> cut_stretches(150, 420, 100)
        [(150, 200), (200, 300), (300, 400), (400, 420)]
    """
    count = (end_ms - begin_ms) // stretch_ms
    if count > _STRETCHES_MAX:
        message = f"history from {begin_ms} ms to {end_ms} ms has {count} stretches; the limit is {_STRETCHES_MAX}"
        help = "an event may have a wrong time: limit the range with --from and --to, or raise ingest.stretch_s"
        raise UsageError(message, help=help)
    inner = range((begin_ms // stretch_ms + 1) * stretch_ms, end_ms, stretch_ms)
    bounds = [begin_ms, *inner, end_ms]
    return list(pairwise(bounds))


def own_of(joined: Joined, stretch: Stretch) -> Joined:
    """What of a join's rows and letters is the stretch's own."""
    requests, rows, letters = joined.requests, joined.rows, joined.letters
    own = stretch.is_own(requests.event_time_ms) & stretch.has(requests.partition, requests.offset)
    own_letters = stretch.is_own(letters.event_time_ms)
    if stretch.records is not None:  # an action is of no record of impressions
        shown = (letters.kind == LetterKind.IMPRESSION_LATE) | (letters.kind == LetterKind.IMPRESSION_EXCESS)
        own_letters &= shown & stretch.has(letters.partition, letters.offset)
    letters = _taken_letters(letters, np.flatnonzero(own_letters))
    if own.all():
        return replace(joined, letters=letters)
    chosen = np.flatnonzero(own)
    number = np.zeros(len(own), np.int32)
    number[chosen] = np.arange(len(chosen), dtype=np.int32)
    kept = np.flatnonzero(own[rows.request_index])
    columns: dict[str, Any] = {name: column[kept] for name, column in vars(rows).items()}
    payload, payload_at = _taken_spans(requests.payload, requests.payload_at, chosen)
    return Joined(
        replace(
            requests,
            partition=requests.partition[chosen],
            offset=requests.offset[chosen],
            first_item=requests.first_item[chosen],
            event_time_ms=requests.event_time_ms[chosen],
            reads_back=requests.reads_back[chosen],
            payload=payload,
            payload_at=payload_at,
        ),
        replace(rows, **columns | {"request_index": number[columns["request_index"]]}),
        letters,
        joined.complete_ms,
    )


def _taken_letters(letters: Letters, chosen: Int64s) -> Letters:
    if len(chosen) == len(letters):
        return letters
    columns: dict[str, Any] = vars(letters).copy()
    for data, at in (("request_ids", "request_at"), ("payload", "payload_at")):
        columns[data], columns[at] = _taken_spans(columns[data], columns[at], chosen)
    spans = ("request_ids", "request_at", "payload", "payload_at")
    return Letters(**{name: column if name in spans else column[chosen] for name, column in columns.items()})


def _taken_spans(data: npt.NDArray[np.uint8], at: Int64s, rows: Int64s) -> tuple[npt.NDArray[np.uint8], Int64s]:
    taken, offsets = native.take_spans(data, at, rows)
    return taken, offsets.astype(np.int64)
