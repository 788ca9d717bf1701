"""Records of one topic as a section of a blob: its clock is moved over them, and what only moves clocks ends here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamlearn.errors import BadRecord
from streamlearn.ingest.blob import Section
from streamlearn.ingest.watermark import TimeRules, TopicClock, end, heartbeat, read
from streamlearn.schemas import CONTROL
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.topics import Records

__all__ = ["section_of"]


def section_of(records: Records, clock: TopicClock, rules: TimeRules, wall_ms: int) -> tuple[Section, TopicClock]:
    """Records as a section, and the topic's clock behind them.

    Args:
        records: Of one partition of one topic.
        clock: Of that partition, before them.
        rules: What time is.
        wall_ms: When they were read.
    """
    times, limits = records.timestamps_ms, np.empty(len(records), np.int64)
    controls, begin = _controls(records.values), 0
    for at, control in controls:
        clock, limits[begin:at] = read(clock, rules, times[begin:at], wall_ms)
        begin = at + 1
        if control["kind"] == "END":
            clock = end(clock)
        elif control["kind"] == "HEARTBEAT":
            clock = heartbeat(clock, rules, control["event_time_ms"], wall_ms)
    clock, limits[begin:] = read(clock, rules, times[begin:], wall_ms)
    section = Section(records.offsets, times, limits, records.keys, records.values)
    return (_without(section, [at for at, _ in controls]) if controls else section), clock


def _controls(values: Sequence[bytes | None]) -> list[tuple[int, dict[str, Any]]]:
    """Heartbeats and end marks, by place; damaged ones are left to whoever decodes them and says what is wrong."""
    prefix, found = CONTROL.prefix, []
    for at in [at for at, value in enumerate(values) if value is not None and value[:PREFIX_BYTES] == prefix]:
        try:
            found.append((at, CONTROL.read((values[at] or b"")[PREFIX_BYTES:])))
        except BadRecord:
            continue
    return found


def _without(section: Section, left_out: list[int]) -> Section:
    rows = np.delete(np.arange(len(section)), left_out)
    chosen = rows.tolist()
    keys, values = [section.keys[row] for row in chosen], [section.values[row] for row in chosen]
    return Section(section.offsets[rows], section.timestamps_ms[rows], section.limits_ms[rows], keys, values)
