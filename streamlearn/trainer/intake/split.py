"""Split: which samples of a topic are learned and which are held out, by impression time. It learns nothing."""

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
from streamlearn.times import time_text
from streamlearn.topics import Topic
from streamlearn.trainer.intake.feed import Feed, Until, beginning_of
from streamlearn.trainer.intake.message import Message, Reached
from streamlearn.trainer.step import Step
from streamlearn.versions import TimeSkip

__all__ = ["HOLD_OUT", "Split", "SplitRequest", "history_until", "split_of"]

HOLD_OUT = 0.1
"""The share of rows held out by default."""
_BEFORE_ALL_MS, _AFTER_ALL_MS = -(1 << 62), 1 << 62
_GRAIN_MS, _GRAINS_MAX = 1_000, 1 << 20


@dataclass(frozen=True)
class SplitRequest:
    """The samples that an evaluation uses, by impression time (event time); a contradiction raises a UsageError."""

    begin_ms: int | None = None  # the first time; None for the first sample
    end_ms: int | None = None  # the end, exclusive; None for the last sample
    test_ms: int | None = None  # samples from here on are held out; None: the last `hold_out` of all rows
    hold_out: float | None = None  # the share of rows to hold out; None: `HOLD_OUT` if `test_ms` is None too

    def __post_init__(self) -> None:
        """Check the values against each other."""
        if self.test_ms is not None and self.hold_out is not None:
            message = "both a time and a share are given for holding out"
            raise UsageError(message, help="give --test-from or --hold-out")
        if self.hold_out is not None and not 0 <= self.hold_out < 1:
            message = f"invalid share to hold out: {self.hold_out}"
            raise UsageError(message, help="give --hold-out from 0, which holds nothing out, to below 1, such as 0.1")
        times_ms = [time_ms for time_ms in (self.begin_ms, self.test_ms, self.end_ms) if time_ms is not None]
        if any(later <= earlier for earlier, later in pairwise(times_ms)):
            message = f"the times {', '.join(map(str, times_ms))} ms are not in increasing order"
            raise UsageError(message, help="--from must be before --test-from, and --test-from before --to")


@dataclass(frozen=True)
class Split:
    """The ranges that are read, learned and held out. Times are impression times."""

    begin_ms: int  # samples from here on are learned
    test_ms: int  # samples from here on are held out
    end_ms: int  # samples from here on are ignored
    begin: Reached  # the position at which reading begins
    ends: Mapping[int, int]  # by partition, the first offset that is not read
    held_begin: Reached  # the position at which reading of held-out samples begins
    complete_ms: int | None  # the event time up to which samples are complete; None if it is unknown
    span_ms: int  # the table time from the first message to the last

    @property
    def not_learned(self) -> tuple[TimeSkip, ...]:
        """Everything that is not learned."""
        return _all_but(self.begin_ms, self.test_ms)

    @property
    def not_held(self) -> tuple[TimeSkip, ...]:
        """Everything that is not held out."""
        return _all_but(self.test_ms, self.end_ms)

    @property
    def ignored(self) -> tuple[TimeSkip, ...]:
        """Everything that is neither learned nor held out."""
        return _all_but(self.begin_ms, self.end_ms)


def split_of(
    folder: AppFolder,
    topic: Topic,
    request: SplitRequest,
    ends: Mapping[int, int],
    *,
    keep_aside: Callable[[str, bytes], None],
    clock: Clock = SYSTEM_CLOCK,
) -> Split:
    """Read all samples once to find their impression times, and split them.

    `ends` maps each partition to the first offset that is not read; `keep_aside` takes messages that cannot be read. If
    nothing would be learned, or no held-out row could be scored, it raises a UsageError.
    """
    begin = beginning_of(topic)
    survey = _Survey(topic.partitions)
    feed = Feed(folder, topic, begin, survey, until=Until(ends), keep_aside=keep_aside, clock=clock)
    with closing(feed):
        for _ in feed.steps():
            pass
    begin_ms, test_ms, end_ms = _times_ms(request, survey)
    if test_ms < end_ms:
        _check_final(folder, test_ms, survey)
    return Split(
        begin_ms=begin_ms,
        test_ms=test_ms,
        end_ms=end_ms,
        begin=begin,
        ends=ends,
        held_begin=Reached(survey.first_from(test_ms, ends), begin.watermarks_ms),
        complete_ms=survey.complete_ms,
        span_ms=survey.span_ms,
    )


def history_until(
    folder: AppFolder,
    topic: Topic,
    ends: Mapping[int, int],
    until_ms: int | None,
    *,
    keep_aside: Callable[[str, bytes], None],
    clock: Clock = SYSTEM_CLOCK,
) -> tuple[Mapping[int, int], int]:
    """Return where the messages end that are only of impressions before a time, and the table time that they span.

    Without a time that is `ends`, up to which all samples are read once.
    """
    survey = _Survey(topic.partitions)
    feed = Feed(folder, topic, beginning_of(topic), survey, until=Until(ends), keep_aside=keep_aside, clock=clock)
    with closing(feed):
        for _ in feed.steps():
            pass
    firsts = ends if until_ms is None else dict(enumerate(survey.first_from(until_ms, ends)))
    if not survey.has_before(firsts):
        message = "the first version would have nothing to learn: no message has only impressions from before that time"
        raise UsageError(message, help=_help(survey))
    return firsts, survey.span_ms


class _Survey:
    """Takes the messages of a feed, makes no steps, and records the impression times of their rows."""

    has_more = has_rows = False

    def __init__(self, partitions: int) -> None:
        self.rows: Counter[int] = Counter()  # by the grain of time in which the impression falls
        self.grain_ms = _GRAIN_MS
        self.complete_ms: int | None = None
        self._clocks_ms: list[int] = []
        # By partition, for each message with rows: its offset, and the latest impression time of its rows.
        self._offsets, self._last_ms = ([array("q") for _ in range(partitions)] for _ in range(2))

    def add(self, message: Message, before: Reached, after: Reached) -> Iterator[Step]:
        """Record a message; it fills no step."""
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
        """Never called, since no rows wait."""
        raise AssertionError(reached)

    @property
    def span_ms(self) -> int:
        """The table time from the first message to the last."""
        return max(self._clocks_ms) - min(self._clocks_ms)

    def first_from(self, time_ms: int, ends: Mapping[int, int]) -> tuple[int, ...]:
        """Return, by partition, the first message with a row shown at `time_ms` or later, or the end without one."""
        firsts = []
        for partition, (offsets, last_ms) in enumerate(zip(self._offsets, self._last_ms, strict=True)):
            which = np.flatnonzero(np.array(last_ms, np.int64) >= time_ms)
            firsts.append(offsets[which[0]] if len(which) else ends.get(partition, 0))
        return tuple(firsts)

    def has_before(self, ends: Mapping[int, int]) -> bool:
        """Whether a message with rows is before the ends."""
        return any(len(offsets) and offsets[0] < ends.get(number, 0) for number, offsets in enumerate(self._offsets))

    def _coarsen(self) -> None:
        self.grain_ms *= 2
        finer, self.rows = self.rows, Counter()
        for grain, count in finer.items():
            self.rows[grain // 2] += count


def _times_ms(request: SplitRequest, survey: _Survey) -> tuple[int, int, int]:
    """Return the begin and end of learning, and the end of holding out, which begins where learning ends."""
    grain_ms = survey.grain_ms
    begin_ms = _BEFORE_ALL_MS if request.begin_ms is None else request.begin_ms
    end_ms = _AFTER_ALL_MS if request.end_ms is None else request.end_ms
    rows = [
        (grain * grain_ms, count) for grain, count in sorted(survey.rows.items()) if begin_ms < (grain + 1) * grain_ms
    ]
    rows = [(at_ms, count) for at_ms, count in rows if at_ms < end_ms]
    if not rows:
        message = f"none of the {survey.rows.total()} rows of samples were shown within the given times"
        raise UsageError(message, help=_help(survey))
    begin_ms, end_ms = max(begin_ms, rows[0][0]), min(end_ms, rows[-1][0] + grain_ms)
    test_ms = request.test_ms
    if test_ms is None:
        wanted = (HOLD_OUT if request.hold_out is None else request.hold_out) * sum(count for _, count in rows)
        test_ms, held = end_ms, 0
        while held < wanted:
            test_ms, count = rows.pop()
            held += count
    if not begin_ms < test_ms <= end_ms:
        message = "all rows would be held out, or none"
        raise UsageError(message, help=_help(survey))
    return begin_ms, test_ms, end_ms


def _check_final(folder: AppFolder, test_ms: int, survey: _Survey) -> None:
    """Refuse held-out rows without any final label."""
    complete_ms, shortest_s = survey.complete_ms, min(group.window_s for group in folder.app.groups)
    if complete_ms is None or test_ms >= complete_ms - shortest_s * 1_000:
        known = "is not known" if complete_ms is None else f"is {complete_ms} ms"
        message = (
            f"the rows held out, from {test_ms} ms on, have no final label yet: the time up to which samples "
            f"are complete {known}"
        )
        times = None if complete_ms is None else _held_out(survey, complete_ms - shortest_s * 1_000)
        help = f"hold out rows shown at least {shortest_s} s before that time, or wait until ingest has advanced"
        if times is not None:
            help += f": `streamlearn evaluate APP --test-from {times[0]} --to {times[1]}`"
        raise UsageError(message, help=help)


def _held_out(survey: _Survey, final_ms: int) -> tuple[str, str] | None:
    """Return from when and up to when rows have final labels, before a time; None if none would be learned."""
    grain_ms = survey.grain_ms
    rows = [
        (grain * grain_ms, count) for grain, count in sorted(survey.rows.items()) if (grain + 1) * grain_ms <= final_ms
    ]
    wanted, held, test_ms = HOLD_OUT * sum(count for _, count in rows), 0, 0
    end_ms = rows[-1][0] + grain_ms if rows else 0
    while len(rows) > 1 and held < wanted:
        test_ms, count = rows.pop()
        held += count
    # Without the space a shell takes them as they are.
    return (time_text(test_ms).replace(" ", "T"), time_text(end_ms).replace(" ", "T")) if held else None


def _help(survey: _Survey) -> str:
    if not survey.rows:
        return "run ingest first: `streamlearn ingest APP`, or `streamlearn backfill APP`"
    first, last = min(survey.rows) * survey.grain_ms, (max(survey.rows) + 1) * survey.grain_ms
    return (
        f"rows were shown from {first} ms up to {last} ms; choose --from, --test-from, --to and --hold-out in "
        "that range"
    )


def _all_but(begin_ms: int, end_ms: int) -> tuple[TimeSkip, ...]:
    before, after = (_BEFORE_ALL_MS, begin_ms), (end_ms, _AFTER_ALL_MS)
    return tuple(TimeSkip(begin_ms=begin, end_ms=end) for begin, end in (before, after))
