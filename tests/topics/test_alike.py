"""Memory and file topics behave alike under any sequence of calls."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from streamlearn.errors import PositionLost
from streamlearn.topics import Reader, Records, Topic, TopicSettings, Writer
from tests.topics.places import FixedClock, Place

_KEYS = st.sampled_from([b"", b"a", b"b", b"c"])
_VALUES = st.one_of(st.none(), st.binary(max_size=40))
_RECORDS = st.lists(st.tuples(_KEYS, _VALUES, st.integers(0, 5_000)), max_size=6)


class Alike(RuleBasedStateMachine):
    """One topic of each kind, to which everything is done twice."""

    @initialize(
        compacted=st.booleans(),
        retention_ms=st.sampled_from([-1, 2_000]),
        retention_bytes=st.sampled_from([-1, 300]),
        segment_bytes=st.sampled_from([1, 100, 300]),
    )
    def create(self, compacted: bool, retention_ms: int, retention_bytes: int, segment_bytes: int) -> None:
        settings = TopicSettings(
            compacted=compacted,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            segment_bytes=segment_bytes,
            tombstones_keep_ms=1_000,
        )
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FixedClock(3_000)
        self.places = [Place.of("memory", Path()), Place.of("file", Path(self.folder.name))]
        self.topics: list[Topic] = [place.create(settings, self.clock) for place in self.places]
        self.writers: list[Writer] = [topic.writer() for topic in self.topics]
        self.readers: list[Reader] = [topic.reader() for topic in self.topics]

    @rule(records=_RECORDS)
    def append(self, records: list[tuple[bytes, bytes | None, int]]) -> None:
        values = [value for _, value, _ in records]
        keys, times = [key for key, _, _ in records], [stamped_ms for _, _, stamped_ms in records]
        one, other = (writer.append(0, values, keys, times).tolist() for writer in self.writers)
        assert one == other

    @rule(back=st.integers(0, 30), max_records=st.integers(1, 5), max_bytes=st.integers(1, 300))
    def read(self, back: int, max_records: int, max_bytes: int) -> None:
        end = self.readers[0].end(0)
        one, other = (_outcome(reader, max(0, end - back), max_records, max_bytes) for reader in self.readers)
        assert one == other

    @rule()
    def read_everything(self) -> None:
        one, other = (_everything(reader) for reader in self.readers)
        assert one == other

    @rule(timestamp_ms=st.integers(0, 6_000))
    def look(self, timestamp_ms: int) -> None:
        one, other = (
            (reader.earliest(0), reader.end(0), reader.offset_for_time(0, timestamp_ms)) for reader in self.readers
        )
        assert one == other

    @rule(later_ms=st.integers(0, 1_500))
    def maintain(self, later_ms: int) -> None:
        self.clock.now_ms += later_ms
        for topic in self.topics:
            topic.maintain()

    @rule()
    def reopen(self) -> None:
        for at, topic in enumerate(self.topics):
            self.readers[at].close()
            self.writers[at].close()
            self.readers[at], self.writers[at] = topic.reader(), topic.writer()

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            for reader, writer in zip(self.readers, self.writers, strict=True):
                reader.close()
                writer.close()
            for place in self.places:
                place.clean()
            self.folder.cleanup()


def _outcome(reader: Reader, offset: int, max_records: int, max_bytes: int) -> object:
    try:
        records = reader.read(0, offset, max_records=max_records, max_bytes=max_bytes)
    except PositionLost as lost:
        return str(lost).partition(":")[2].partition("partition")[2]
    return _rows(records)[:1], len(records) > 0, len(records) <= max_records


def _everything(reader: Reader) -> list[object]:
    rows: list[object] = []
    offset, end = reader.earliest(0), reader.end(0)
    while offset < end:
        records = reader.read(0, offset)
        assert records.next_offset > offset
        rows += _rows(records)
        offset = records.next_offset
    return rows


def _rows(records: Records) -> list[object]:
    columns = (records.offsets.tolist(), records.timestamps_ms.tolist(), records.keys, records.values)
    return list(zip(*columns, strict=True))


TestAlike = Alike.TestCase
TestAlike.settings = hypothesis_settings(max_examples=50, stateful_step_count=25)
