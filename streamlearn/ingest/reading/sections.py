"""Sections: records of one topic as a section of a blob, without the heartbeats and end marks that move its clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from streamlearn.errors import BadRecord
from streamlearn.events import EventDecoder
from streamlearn.ingest.reading.blob import Section
from streamlearn.ingest.reading.plan import ReadPlan
from streamlearn.ingest.reading.watermark import TimeRules, TopicClock, end, heartbeat, read
from streamlearn.schemas import CONTROL
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.topics import Records

__all__ = ["event_times_of", "section_of"]

Int64s = npt.NDArray[np.int64]
TimesOf: TypeAlias = Callable[[bytes | None], Int64s]


def event_times_of(plan: ReadPlan) -> TimesOf | None:
    """Return what reads the times of all readable events of a record; None if the plan names no application.

    It loads the application on the first call: few records need it.
    """
    decoder_of = cache(lambda: EventDecoder.of(plan.load_app()))

    def times_of(value: bytes | None) -> Int64s:
        events = decoder_of().decode([value])
        parts = [kind.columns["event_time_ms"] for kind in (events.impressions, events.actions) if len(kind)]
        return np.concatenate([np.empty(0, np.int64), *parts])

    return times_of if plan.app else None


def section_of(
    records: Records,
    clock: TopicClock,
    rules: TimeRules,
    wall_ms: int,
    times_of: TimesOf | None = None,
) -> tuple[Section, TopicClock]:
    """Return records of one partition as a section, and the topic's clock after them.

    `times_of` returns the event times of a record. Without it, only the timestamps of records are checked.
    """
    times, limits = records.timestamps_ms, np.empty(len(records), np.int64)
    controls, begin = _controls(records.values), 0

    def read_part(begin: int, stop: int) -> tuple[TopicClock, Int64s]:
        of_record = None if times_of is None else lambda at: times_of(records.values[begin + at])
        return read(clock, rules, times[begin:stop], wall_ms, of_record)

    for at, control in controls:
        clock, limits[begin:at] = read_part(begin, at)
        begin = at + 1
        if control["kind"] == "END":
            clock = end(clock)
        elif control["kind"] == "HEARTBEAT":
            clock = heartbeat(clock, rules, control["event_time_ms"], wall_ms)
    clock, limits[begin:] = read_part(begin, len(times))
    section = Section(records.offsets, times, limits, records.keys, records.values)
    return (_without(section, [at for at, _ in controls]) if controls else section), clock


def _controls(values: Sequence[bytes | None]) -> list[tuple[int, dict[str, Any]]]:
    """Return heartbeats and end marks by index. Damaged ones stay: decoding them fails with the reason."""
    prefix, controls = CONTROL.prefix, []
    for at in [at for at, value in enumerate(values) if value is not None and value[:PREFIX_BYTES] == prefix]:
        try:
            controls.append((at, CONTROL.read((values[at] or b"")[PREFIX_BYTES:])))
        except BadRecord:
            continue
    return controls


def _without(section: Section, excluded: list[int]) -> Section:
    rows = np.delete(np.arange(len(section)), excluded)
    keys, values = ([column[row] for row in rows.tolist()] for column in (section.keys, section.values))
    return Section(section.offsets[rows], section.timestamps_ms[rows], section.limits_ms[rows], keys, values)
