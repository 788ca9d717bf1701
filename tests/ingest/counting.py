"""A job that counts: the source, the cutting into lots, and a step that writes down what came to each lot.

It stands in for a join: it writes what it was given and then, by an event-time timer, each lot's progress.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.coders import VarIntCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer

from streamlearn.apps import load_app
from streamlearn.ingest import ProgressLog, ReadPlan, begin_run
from streamlearn.ingest.beam.cut_lots import CutLots
from streamlearn.ingest.beam.runners import runner_options
from streamlearn.ingest.beam.source import read_events, timestamp_of
from streamlearn.ingest.join.lot_events import decode_lot
from streamlearn.ingest.reading.watermark import BEFORE_ALL
from streamlearn.topics import open_topic

TICK_MS = 60_000


class Count(beam.DoFn):
    """Writes down the identities of each lot's impressions and actions, and each lot's progress."""

    ARMED = ReadModifyWriteStateSpec("armed", VarIntCoder())
    LATEST = ReadModifyWriteStateSpec("latest", VarIntCoder())
    CLOSED = ReadModifyWriteStateSpec("closed", VarIntCoder())
    TICK = TimerSpec("tick", TimeDomain.WATERMARK)

    def __init__(self, plan: ReadPlan, counts_url: str) -> None:
        self._plan, self._counts_url = plan, counts_url

    def setup(self) -> None:
        self._topic = open_topic(self._counts_url)
        self._writer = self._topic.writer()
        self._log = ProgressLog.open(self._plan.progress_url, self._plan.access)

    def process(
        self,
        element: tuple[int, bytes],
        armed: Any = beam.DoFn.StateParam(ARMED),
        closed: Any = beam.DoFn.StateParam(CLOSED),
        latest: Any = beam.DoFn.StateParam(LATEST),
        tick: Any = beam.DoFn.TimerParam(TICK),
    ) -> Iterator[None]:
        events = decode_lot(element[1])
        assert events.lot == element[0]
        shown, done = events.impressions, events.actions
        said = {
            "run": self._plan.run,
            "lot": events.lot,
            "impressions": [
                list(one)
                for one in zip(
                    shown.partition.tolist(), shown.offset.tolist(), shown.first_item.tolist(),
                    shown.event_time_ms.tolist(), strict=True,
                )
            ],
            "actions": [
                list(one)
                for one in zip(
                    done.partition.tolist(), done.offset.tolist(), done.event_index.tolist(),
                    done.event_time_ms.tolist(), strict=True,
                )
            ],
        }  # fmt: skip
        if len(events):
            self._writer.append(0, [json.dumps(said).encode()])
        times = [latest.read() or 0, *shown.event_time_ms.tolist(), *done.event_time_ms.tolist()]
        latest.write(max(times))
        if events.closes:
            closed.write((closed.read() or 0) + 1)
        if not armed.read() and events.watermark_ms > BEFORE_ALL:
            armed.write(1)
            tick.set(timestamp_of(_next(events.watermark_ms)))
        yield from ()

    @on_timer(TICK)
    def fire(
        self,
        lot: Any = beam.DoFn.KeyParam,
        at: Any = beam.DoFn.TimestampParam,
        closed: Any = beam.DoFn.StateParam(CLOSED),
        latest: Any = beam.DoFn.StateParam(LATEST),
        tick: Any = beam.DoFn.TimerParam(TICK),
    ) -> Iterator[None]:
        at_ms = at.micros // 1000
        self._log.write(self._plan.run, self._plan.lineage, {lot: at_ms})
        if (closed.read() or 0) < self._plan.partitions or at_ms <= (latest.read() or 0):
            tick.set(timestamp_of(_next(at_ms)))
        yield from ()

    def teardown(self) -> None:
        self._log.close()
        self._writer.close()
        self._topic.close()


def _next(at_ms: int) -> int:
    return (at_ms // TICK_MS + 1) * TICK_MS


def run(app: str, counts_url: str, flags: list[str]) -> None:
    """Run one run of the job to its end."""
    folder = load_app(Path(app))
    plan = replace(begin_run(folder), app=app)
    options = runner_options(folder.settings.ingest, more=flags)
    with beam.Pipeline(options=options) as pipeline:
        cut = beam.ParDo(CutLots(plan))  # type: ignore[no-untyped-call]
        count = beam.ParDo(Count(plan, counts_url))  # type: ignore[no-untyped-call]
        _ = pipeline | "Read" >> read_events(plan, whole=True) | "Cut" >> cut | "Count" >> count
