"""Stretch: a part of history by event time, which a backfill joins on its own with the events around it. Pure.

An impression belongs to one stretch. To join it as if nothing had been cut, events around the stretch are needed too:
actions while windows are open, and impressions whose actions would be orphans otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from streamlearn.errors import UsageError
from streamlearn.ingest.join.columns import ImpressionColumns, Joined, JoinedRequests, LetterKind
from streamlearn.ingest.join.plan import JoinPlan
from streamlearn.ingest.join.time_order import taken_columns

__all__ = ["NO_INGEST", "Stretch", "cut_stretches", "own_of", "stretch_of"]

Int64s = npt.NDArray[np.int64]

NO_INGEST = 1 << 62
"""The `live_ms` without a running ingest."""
_STRETCHES_MAX = 100_000  # 270 years of days; each costs a lookup in every partition


@dataclass(frozen=True)
class Stretch:
    """The events that one join of a backfill reads.

    Attributes:
        begin_ms: Impressions from this event time on make samples.
        end_ms: The end, exclusive.
        impressions_ms: First and last event time of the impressions that are needed.
        actions_ms: First and last event time of the actions that are needed.
        records: Partition, first offset and end offset (exclusive) of the impressions that make samples; None: all.
        live_ms: The watermark of an ingest that runs at the same time: a later one would make its rows late.
        interactions: Whether interactions are written too.
    """

    begin_ms: int
    end_ms: int
    impressions_ms: tuple[int, int]
    actions_ms: tuple[int, int]
    records: tuple[tuple[int, int, int], ...] | None = None
    live_ms: int = NO_INGEST
    interactions: bool = False

    @property
    def watermark_ms(self) -> int:
        """The watermark after it: all its rows are settled, and rows of a running ingest are not late."""
        return min(self.actions_ms[1], self.live_ms)

    def is_own(self, times_ms: Int64s) -> npt.NDArray[np.bool_]:
        """Return which event times belong to this stretch."""
        return (times_ms >= self.begin_ms) & (times_ms < self.end_ms)

    def owns(self, impressions: ImpressionColumns | JoinedRequests) -> npt.NDArray[np.bool_]:
        """Return which impressions make samples here."""
        return self.is_own(impressions.event_time_ms) & self.has(impressions.partition, impressions.offset)

    def has(self, partitions: npt.NDArray[np.int32], offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Return which records' impressions make samples here, if their times do."""
        if self.records is None:
            return np.ones(len(offsets), np.bool_)
        is_in = np.zeros(len(offsets), np.bool_)
        for partition, begin, end in self.records:
            is_in |= (partitions == partition) & (offsets >= begin) & (offsets < end)
        return is_in


def stretch_of(plan: JoinPlan, begin_ms: int, end_ms: int) -> Stretch:
    """Return a stretch with the times of the events around it."""
    window_ms, early_ms = plan.longest_window_ms, plan.early_ms
    return Stretch(
        begin_ms, end_ms, (begin_ms - window_ms, end_ms + early_ms), (begin_ms - early_ms, end_ms + window_ms)
    )


def cut_stretches(begin_ms: int, end_ms: int, stretch_ms: int) -> list[tuple[int, int]]:
    """Return the bounds of stretches: multiples of their length, so that a repeated backfill has the same ones.

    Raises `UsageError` if there are too many, for instance because one event has a time in the far future.

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
    """Return the rows, interactions and letters of a join that belong to the stretch."""
    requests, rows, letters = joined.requests, joined.rows, joined.letters
    own = stretch.owns(requests)
    own_letters = stretch.is_own(letters.event_time_ms)
    if stretch.records is not None:  # which are impressions only
        shown = (letters.kind == LetterKind.IMPRESSION_LATE) | (letters.kind == LetterKind.IMPRESSION_EXCESS)
        own_letters &= shown & stretch.has(letters.partition, letters.offset)
    letters = letters if own_letters.all() else taken_columns(letters, np.flatnonzero(own_letters))
    if own.all():
        return replace(joined, letters=letters)
    number = np.cumsum(own, dtype=np.int32) - np.int32(1)
    kept = rows.take(np.flatnonzero(own[rows.request_index]))
    kept = replace(kept, request_index=number[kept.request_index])
    made = joined.interactions.take(np.flatnonzero(own[joined.interactions.request_index]))
    made = replace(made, request_index=number[made.request_index])
    return Joined(taken_columns(requests, np.flatnonzero(own)), kept, made, letters, joined.complete_ms)
