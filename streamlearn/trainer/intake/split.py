"""Split: which samples of a topic are learned and which are held out, by when they were shown. It learns nothing."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import UsageError
from streamlearn.topics import Topic
from streamlearn.trainer.intake.feed import Feed, Until, beginning_of
from streamlearn.trainer.intake.message import Message, Reached
from streamlearn.trainer.step import Step
from streamlearn.versions import TimeSkip

__all__ = ["HOLD_OUT", "Asked", "Split", "split_of"]

HOLD_OUT = 0.1
"""The share of rows held out by default."""
_BEFORE_ALL_MS, _AFTER_ALL_MS = -(1 << 62), 1 << 62
_GRAIN_MS, _GRAINS_MAX = 1_000, 1 << 20


@dataclass(frozen=True)
class Asked:
    """Which samples are wanted, by when their impressions were shown: event time.

    Attributes:
        begin_ms: From here on; None: from the first.
        end_ms: And before here; None: to the last.
        test_ms: Those from here on are held out; None: the last of them, as many as `hold_out` says.
        hold_out: A share of the rows, 0 for none of them; None is `HOLD_OUT` where there is no `test_ms` either.

    Raises:
        UsageError: It contradicts itself.
    """

    begin_ms: int | None = None
    end_ms: int | None = None
    test_ms: int | None = None
    hold_out: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.test_ms is not None and self.hold_out is not None:
            message = "both a time and a share are given for holding out"
            raise UsageError(message, help="give --test-from or --hold-out")
        if self.hold_out is not None and not 0 <= self.hold_out < 1:
            message = f"invalid share to hold out: {self.hold_out}"
            raise UsageError(message, help="give --hold-out from 0, which holds nothing out, to below 1, such as 0.1")
        times_ms = [one for one in (self.begin_ms, self.test_ms, self.end_ms) if one is not None]
        if any(later <= earlier for earlier, later in pairwise(times_ms)):
            message = f"the times {', '.join(map(str, times_ms))} ms are not in increasing order"
            raise UsageError(message, help="--from must be before --test-from, and --test-from before --to")


@dataclass(frozen=True)
class Split:
    """What is read, what of it is learned, and what is held out. Times are of impressions, event time.

    Attributes:
        begin_ms: Learned from here on.
        test_ms: Held out from here on.
        end_ms: Neither from here on.
        begin: Where reading begins; nothing was learned.
        ends: By partition, the offset that is not read any more.
        held_begin: Where reading of what is held out begins.
        complete_ms: Event time up to which samples are complete; None where that is not known.
        span_ms: How far the time of tables goes from the first message to the last.
    """

    begin_ms: int
    test_ms: int
    end_ms: int
    begin: Reached
    ends: Mapping[int, int]
    held_begin: Reached
    complete_ms: int | None
    span_ms: int

    @property
    def not_learned(self) -> tuple[TimeSkip, ...]:
        """All that is not to be learned."""
        return _all_but(self.begin_ms, self.test_ms)

    @property
    def not_held(self) -> tuple[TimeSkip, ...]:
        """All that is not held out."""
        return _all_but(self.test_ms, self.end_ms)


def split_of(
    folder: AppFolder,
    topic: Topic,
    asked: Asked,
    ends: Mapping[int, int],
    *,
    keep_aside: Callable[[str, bytes], None],
    clock: Clock = SYSTEM_CLOCK,
) -> Split:
    """Read all samples once, to see when they were shown.

    Args:
        folder: The application.
        topic: Its samples.
        asked: What is wanted.
        ends: By partition, the offset that is not read any more.
        keep_aside: Takes messages that cannot be read.
        clock: How long is waited.

    Raises:
        UsageError: Nothing would be learned, or nothing that is held out could be scored.
    """
    begin = beginning_of(topic)
    look = _Look(topic.partitions)
    feed = Feed(folder, topic, begin, look, until=Until(ends), keep_aside=keep_aside, clock=clock)
    with closing(feed):
        for _ in feed.steps():
            pass
    begin_ms, test_ms, end_ms = _times_ms(asked, look)
    if test_ms < end_ms:
        _check_final(folder, test_ms, look.complete_ms)
    return Split(
        begin_ms=begin_ms,
        test_ms=test_ms,
        end_ms=end_ms,
        begin=begin,
        ends=ends,
        held_begin=Reached(look.first_from(test_ms, ends), begin.watermarks_ms),
        complete_ms=look.complete_ms,
        span_ms=look.span_ms,
    )


class _Look:
    """Takes messages as a feed gives them, makes no step of them, and keeps when their rows were shown."""

    has_more = has_rows = False

    def __init__(self, partitions: int) -> None:
        self.rows: Counter[int] = Counter()  # by the grain of time they were shown in
        self.grain_ms = _GRAIN_MS
        self.complete_ms: int | None = None
        self._clocks_ms: list[int] = []
        # Of the messages of each partition: their offsets, and when the latest of their rows was shown.
        self._offsets, self._last_ms = ([array("q") for _ in range(partitions)] for _ in range(2))

    def add(self, message: Message, before: Reached, after: Reached) -> Iterator[Step]:
        """Note a message."""
        del before
        assert after.clock_ms is not None
        self.complete_ms = after.watermark_ms
        self._clocks_ms[1:] = [after.clock_ms]
        if len(message.batch):
            shown_ms = message.batch.requests.event_time_ms[message.batch.request_index]
            self._offsets[message.partition].append(message.offset)
            self._last_ms[message.partition].append(int(shown_ms.max()))
            grains, counts = np.unique(shown_ms // self.grain_ms, return_counts=True)
            self.rows.update(dict(zip(grains.tolist(), counts.tolist(), strict=True)))
            if len(self.rows) > _GRAINS_MAX:
                self._coarsen()
        return iter(())

    def flush(self, reached: Reached) -> Step:
        """Never asked for: no message is held."""
        raise AssertionError(reached)

    @property
    def span_ms(self) -> int:
        """How far the time of tables went."""
        return max(self._clocks_ms) - min(self._clocks_ms)

    def first_from(self, time_ms: int, ends: Mapping[int, int]) -> tuple[int, ...]:
        """By partition, the first message with a row that was shown then or later; its end where there is none."""
        found = []
        for partition, (offsets, last_ms) in enumerate(zip(self._offsets, self._last_ms, strict=True)):
            which = np.flatnonzero(np.array(last_ms, np.int64) >= time_ms)
            found.append(offsets[which[0]] if len(which) else ends.get(partition, 0))
        return tuple(found)

    def _coarsen(self) -> None:
        self.grain_ms *= 2
        finer, self.rows = self.rows, Counter()
        for grain, count in finer.items():
            self.rows[grain // 2] += count


def _times_ms(asked: Asked, look: _Look) -> tuple[int, int, int]:
    """Where learning begins, where it ends and holding out begins, and where that ends."""
    grain_ms = look.grain_ms
    begin_ms = _BEFORE_ALL_MS if asked.begin_ms is None else asked.begin_ms
    end_ms = _AFTER_ALL_MS if asked.end_ms is None else asked.end_ms
    rows = [(at * grain_ms, count) for at, count in sorted(look.rows.items()) if begin_ms < (at + 1) * grain_ms]
    rows = [(at_ms, count) for at_ms, count in rows if at_ms < end_ms]
    if not rows:
        message = f"none of the {look.rows.total()} rows of samples were shown within the given times"
        raise UsageError(message, help=_help(look))
    begin_ms, end_ms = max(begin_ms, rows[0][0]), min(end_ms, rows[-1][0] + grain_ms)
    test_ms = asked.test_ms
    if test_ms is None:
        wanted = (HOLD_OUT if asked.hold_out is None else asked.hold_out) * sum(count for _, count in rows)
        test_ms, held = end_ms, 0
        while held < wanted:
            test_ms, count = rows.pop()
            held += count
    if not begin_ms < test_ms <= end_ms:
        message = "all rows would be held out, or none"
        raise UsageError(message, help=_help(look))
    return begin_ms, test_ms, end_ms


def _check_final(folder: AppFolder, test_ms: int, complete_ms: int | None) -> None:
    """Refuse to hold out rows of which no label is final."""
    shortest_s = min(group.window_s for group in folder.app.groups)
    if complete_ms is None or test_ms >= complete_ms - shortest_s * 1_000:
        known = "is not known" if complete_ms is None else f"is {complete_ms} ms"
        message = (
            f"the rows held out, from {test_ms} ms on, have no final label yet: the time up to which samples "
            f"are complete {known}"
        )
        help = f"hold out rows shown at least {shortest_s} s before that time, or wait until ingest has advanced"
        raise UsageError(message, help=help)


def _help(look: _Look) -> str:
    if not look.rows:
        return "run ingest first: `streamlearn ingest APP`, or `streamlearn backfill APP`"
    first, last = min(look.rows) * look.grain_ms, (max(look.rows) + 1) * look.grain_ms
    return (
        f"rows were shown from {first} ms up to {last} ms; choose --from, --test-from, --to and --hold-out in "
        "that range"
    )


def _all_but(begin_ms: int, end_ms: int) -> tuple[TimeSkip, ...]:
    before, after = (_BEFORE_ALL_MS, begin_ms), (end_ms, _AFTER_ALL_MS)
    return tuple(TimeSkip(begin_ms=begin, end_ms=end) for begin, end in (before, after))
