"""The peer of ingest: the same join as a pipeline of single events, with Beam's state and timers for each event.

It follows Beam's guide to state and timers. It has advantages: it uses our reader, and writes short rows. It has no
restarts, late events, dead letters or metrics.
"""

from __future__ import annotations

import json
import struct
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam import coders
from apache_beam.io.unbounded_source import CheckpointMark, ReadFromUnboundedSource, UnboundedReader, UnboundedSource
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp

from streamlearn.apps import load_app
from streamlearn.schemas import CONTROL, action_schema, impression_schema
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.topics import AccessSettings, open_topic

__all__ = ["Seen", "per_event_pipeline"]

_MARK = struct.Struct("<4q2?")
_RECORDS, _WAIT_MS = 2_000, 20


class Seen:
    """The time of the first event, the time of the last acknowledged rows, and their number, in this process."""

    begun_s = 0.0
    last_s = 0.0
    rows = 0


@dataclass(frozen=True)
class _Mark(CheckpointMark):
    """The position and event time in both topics, and whether they have ended."""

    offsets: tuple[int, int] = (0, 0)
    times_ms: tuple[int, int] = (-1, -1)
    ended: tuple[bool, bool] = (False, False)

    def finalize_checkpoint(self) -> None:
        """Do nothing."""


class _MarkCoder(coders.Coder):
    def encode(self, value: _Mark) -> bytes:
        return _MARK.pack(*value.offsets, *value.times_ms, *value.ended)

    def decode(self, encoded: bytes) -> _Mark:
        fields = _MARK.unpack(encoded)
        return _Mark(fields[0:2], fields[2:4], fields[4:6])

    def is_deterministic(self) -> bool:
        return True


class _Reader(UnboundedReader):
    """Returns the records of a partition of both topics one by one, from the topic that is behind."""

    def __init__(self, urls: tuple[str, str], access: AccessSettings, partition: int, mark: _Mark) -> None:
        self._partition = partition
        self._topics = [open_topic(url, access) for url in urls]
        self._readers = [topic.reader([partition]) for topic in self._topics]
        self._offsets, self._times_ms, self._ended = list(mark.offsets), list(mark.times_ms), list(mark.ended)
        self._fetched: list[deque[tuple[int, int, bytes]]] = [deque(), deque()]
        self._current = b""
        self._time_ms = 0

    def start(self) -> bool:
        return self.advance()

    def advance(self) -> bool:
        for topic in sorted((0, 1), key=lambda topic: self._times_ms[topic]):
            if self._ended[topic]:
                continue
            fetched = self._fetched[topic]
            if not fetched:
                records = self._readers[topic].read(
                    self._partition, self._offsets[topic], max_records=_RECORDS, wait_ms=_WAIT_MS
                )
                columns = (records.offsets.tolist(), records.timestamps_ms.tolist(), records.values)
                fetched.extend((offset, time_ms, value or b"") for offset, time_ms, value in zip(*columns, strict=True))
            if not fetched:
                return False  # the other topic waits for the one that is behind
            offset, time_ms, value = fetched.popleft()
            self._offsets[topic], self._times_ms[topic] = offset + 1, max(self._times_ms[topic], time_ms)
            if value.startswith(CONTROL.prefix):
                self._ended[topic] |= CONTROL.read(value[PREFIX_BYTES:])["kind"] == "END"
                return self.advance()
            self._current, self._time_ms = value, time_ms
            Seen.begun_s = Seen.begun_s or time.time()
            return True
        return False

    def get_current(self) -> bytes:
        return self._current

    def get_current_timestamp(self) -> Timestamp:
        return Timestamp(micros=self._time_ms * 1_000)

    def get_watermark(self) -> Timestamp:
        open_ = [self._times_ms[topic] for topic in (0, 1) if not self._ended[topic]]
        if not open_:
            return MAX_TIMESTAMP
        return MIN_TIMESTAMP if min(open_) < 0 else Timestamp(micros=min(open_) * 1_000)

    def get_checkpoint_mark(self) -> _Mark:
        offsets, times, ended = tuple(self._offsets), tuple(self._times_ms), tuple(self._ended)
        return _Mark(offsets, times, ended)  # type: ignore[arg-type]  # of two each

    def close(self) -> None:
        for reader, topic in zip(self._readers, self._topics, strict=True):
            reader.close()
            topic.close()


@dataclass(frozen=True)
class _Source(UnboundedSource):
    urls: tuple[str, str]
    access: AccessSettings
    partitions: int
    partition: int | None = None

    def split(self, desired_num_splits: int, options: Any = None) -> list[_Source]:
        if self.partition is not None:
            return [self]
        return [_Source(self.urls, self.access, self.partitions, partition) for partition in range(self.partitions)]

    def create_reader(self, options: Any, checkpoint_mark: CheckpointMark | None) -> _Reader:
        assert self.partition is not None
        assert checkpoint_mark is None or isinstance(checkpoint_mark, _Mark)
        return _Reader(self.urls, self.access, self.partition, checkpoint_mark or _Mark())

    def get_checkpoint_mark_coder(self) -> _MarkCoder:
        return _MarkCoder()

    def default_output_coder(self) -> coders.BytesCoder:
        return coders.BytesCoder()


@beam.typehints.with_output_types(tuple[str, bytes])
class _ByRequest(beam.DoFn):
    """Keys an event by its request."""

    def __init__(self, app: str, changes: tuple[str, ...]) -> None:
        self._app, self._changes = app, changes

    def setup(self) -> None:
        app = load_app(Path(self._app), list(self._changes)).app
        self._schemas = {schema.prefix: schema for schema in (impression_schema(app), action_schema(app))}

    def process(self, element: bytes) -> Iterator[tuple[str, bytes]]:
        event = self._schemas[element[:PREFIX_BYTES]].read(element[PREFIX_BYTES:])
        yield event["request_id"], element


@beam.typehints.with_output_types(bytes)
class _Join(beam.DoFn):
    """State and timers of a request: writes rows at the end of its wait, and corrections until its window ends."""

    SHOWN = ReadModifyWriteStateSpec("shown", coders.BytesCoder())
    SETTLED = ReadModifyWriteStateSpec("settled", coders.VarIntCoder())
    DONE = BagStateSpec("done", coders.BytesCoder())
    DUE = TimerSpec("due", TimeDomain.WATERMARK)
    FORGET = TimerSpec("forget", TimeDomain.WATERMARK)

    def __init__(self, app: str, changes: tuple[str, ...]) -> None:
        self._app, self._changes = app, changes

    def setup(self) -> None:
        app = load_app(Path(self._app), list(self._changes)).app
        self._impression, self._action = impression_schema(app), action_schema(app)
        self._item = app.features.item_id
        (group,) = app.groups
        self._wait_ms, self._window_ms = 1_000 * group.wait_s, 1_000 * group.window_s

    def process(
        self,
        element: tuple[str, bytes],
        shown: Any = beam.DoFn.StateParam(SHOWN),
        settled: Any = beam.DoFn.StateParam(SETTLED),
        done: Any = beam.DoFn.StateParam(DONE),
        due: Any = beam.DoFn.TimerParam(DUE),
        forget: Any = beam.DoFn.TimerParam(FORGET),
    ) -> Iterator[bytes]:
        value = element[1]
        if value.startswith(self._impression.prefix):
            time_ms = self._impression.read(value[PREFIX_BYTES:])["event_time_ms"]
            shown.write(value)
            due.set(Timestamp(micros=1_000 * (time_ms + self._wait_ms)))
            forget.set(Timestamp(micros=1_000 * (time_ms + self._window_ms)))
        elif settled.read():
            yield from self._rows(shown.read(), [value])
        else:
            done.add(value)

    @on_timer(DUE)
    def settle(
        self,
        shown: Any = beam.DoFn.StateParam(SHOWN),
        settled: Any = beam.DoFn.StateParam(SETTLED),
        done: Any = beam.DoFn.StateParam(DONE),
    ) -> Iterator[bytes]:
        settled.write(1)
        yield from self._rows(shown.read(), list(done.read()))

    @on_timer(FORGET)
    def forgotten(
        self,
        shown: Any = beam.DoFn.StateParam(SHOWN),
        settled: Any = beam.DoFn.StateParam(SETTLED),
        done: Any = beam.DoFn.StateParam(DONE),
    ) -> None:
        for state in (shown, settled, done):
            state.clear()

    def _rows(self, shown: bytes, done: list[bytes]) -> Iterator[bytes]:
        """Yield a row for each item, with its actions."""
        impression = self._impression.read(shown[PREFIX_BYTES:])
        actions = [self._action.read(value[PREFIX_BYTES:]) for value in done]
        for item in impression["items"]:
            labels = [action["action"] for action in actions if action["item_id"] == item[self._item]]
            yield json.dumps({"request": impression["request_id"], "item": item, "labels": labels}).encode()


class _Write(beam.DoFn):
    """Writes rows to the samples topic, acknowledged before a bundle ends."""

    def __init__(self, url: str, access: AccessSettings) -> None:
        self._url, self._access = url, access

    def setup(self) -> None:
        self._topic = open_topic(self._url, self._access)
        self._writer = self._topic.writer()

    def process(self, element: bytes) -> None:
        self._writer.send(0, element)
        Seen.rows += 1

    def finish_bundle(self) -> None:
        self._writer.flush()
        Seen.last_s = time.time()

    def teardown(self) -> None:
        self._writer.close()
        self._topic.close()


def per_event_pipeline(pipeline: Any, app: str, changes: tuple[str, ...]) -> None:
    """Add the steps to a Beam pipeline. `app` is the application's folder, and `changes` its `--set` values."""
    folder = load_app(Path(app), list(changes))
    urls = (folder.topic_url("impressions"), folder.topic_url("actions"))
    with open_topic(urls[0], folder.access) as topic:
        source = _Source(urls, folder.access, topic.partitions)
    events = pipeline | "Read" >> ReadFromUnboundedSource(source, poll_interval=0.05, max_read_time_seconds=1.0)
    steps = (_ByRequest(app, changes), _Join(app, changes), _Write(folder.topic_url("samples"), folder.access))
    for step in steps:
        name = type(step).__name__.strip("_")
        events = events | name >> beam.ParDo(step)  # type: ignore[no-untyped-call]
