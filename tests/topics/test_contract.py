"""What every implementation of topics promises, run on all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamlearn.errors import (
    BadRecord,
    NotDelivered,
    Oversize,
    PositionLost,
    TopicExists,
    TopicMissing,
    TopicReplaced,
    UsageError,
)
from streamlearn.topics import (
    Position,
    Reader,
    Records,
    Topic,
    TopicSettings,
    Writer,
    WriterSettings,
    create_topic,
    delete_topic,
    open_topic,
)
from tests.topics.places import ACCESS, SETTINGS, Place, read_all, values_of

NOW_MS = 1_700_000_000_000


@pytest.fixture(params=["memory", "file", pytest.param("kafka", marks=pytest.mark.kafka)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    address = request.getfixturevalue("kafka").address if request.param == "kafka" else ""
    place = Place.of(request.param, tmp_path, address)
    yield place
    place.clean()


@pytest.fixture
def topic(place: Place) -> Iterator[Topic]:
    with place.create() as topic:
        yield topic


@pytest.fixture
def writer(topic: Topic) -> Iterator[Writer]:
    with topic.writer() as writer:
        yield writer


@pytest.fixture
def reader(topic: Topic) -> Iterator[Reader]:
    with topic.reader() as reader:
        yield reader


def test_what_was_appended_is_read(writer: Writer, reader: Reader) -> None:
    offsets = writer.append(1, [b"a", b"", b"c"], [b"k", None, b""], [NOW_MS + 5, NOW_MS, NOW_MS + 9])
    assert offsets.tolist() == [0, 1, 2]
    assert offsets.dtype == np.int64
    records = reader.read(1, 0, wait_ms=2_000)
    assert records.partition == 1
    assert records.offsets.tolist() == [0, 1, 2]
    assert records.timestamps_ms.tolist() == [NOW_MS + 5, NOW_MS, NOW_MS + 9]
    assert records.keys == [b"k", None, b""]
    assert records.values == [b"a", b"", b"c"]
    assert records.next_offset == 3
    assert len(reader.read(0, 0)) == 0


def test_a_new_topic_is_empty(reader: Reader) -> None:
    assert (reader.earliest(0), reader.end(0)) == (0, 0)
    records = reader.read(0, 0)
    assert (len(records), records.next_offset) == (0, 0)
    assert reader.offset_for_time(0, 0) == 0


def test_appending_nothing_does_nothing(writer: Writer, reader: Reader) -> None:
    assert writer.append(0, []).tolist() == []
    assert reader.end(0) == 0


def test_records_without_a_time_have_the_wall_time(writer: Writer, reader: Reader) -> None:
    before_ms = time.time_ns() // 1_000_000
    writer.append(0, [b"a"])
    stamped_ms = int(reader.read(0, 0, wait_ms=2_000).timestamps_ms[0])
    assert before_ms <= stamped_ms <= time.time_ns() // 1_000_000


def test_offsets_go_on_from_append_to_append(topic: Topic, writer: Writer, reader: Reader) -> None:
    with topic.writer() as other:
        assert writer.append(0, [b"0", b"1"]).tolist() == [0, 1]
        assert other.append(0, [b"2"]).tolist() == [2]
        assert writer.append(0, [b"3"]).tolist() == [3]
    assert values_of(read_all(reader)) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("max_records", [1, 7, 1_000])
def test_reading_in_pieces_gives_every_record_once(writer: Writer, reader: Reader, max_records: int) -> None:
    wanted = [b"%d" % at for at in range(50)]
    for start in range(0, 50, 20):
        writer.append(0, wanted[start : start + 20])
    pieces = read_all(reader, max_records=max_records)
    assert values_of(pieces) == wanted
    assert max(len(piece) for piece in pieces) <= max_records


def test_reading_begins_at_any_offset(writer: Writer, reader: Reader) -> None:
    wanted = [b"%d" % at for at in range(30)]
    writer.append(0, wanted)
    for offset in (29, 0, 13, 14, 13):
        records = reader.read(0, offset, wait_ms=2_000)
        assert int(records.offsets[0]) == offset
        assert records.values[0] == wanted[offset]


def test_a_read_stops_at_the_bytes_it_may_take_but_always_gives_one_record(writer: Writer, reader: Reader) -> None:
    writer.append(0, [bytes(5_000)] * 4)
    assert len(reader.read(0, 0, max_bytes=1, wait_ms=2_000)) == 1
    assert len(reader.read(0, 0, max_bytes=11_000, wait_ms=2_000)) == 2


def test_a_read_waits_no_longer_than_it_may(reader: Reader) -> None:
    started_s = time.monotonic()
    assert len(reader.read(0, 0, wait_ms=150)) == 0
    assert 0.1 < time.monotonic() - started_s < ACCESS.answer_wait_ms / 1_000


def test_a_waiting_read_gets_what_is_appended_meanwhile(topic: Topic, writer: Writer) -> None:
    found: list[Records] = []
    reading = threading.Event()

    def read() -> None:
        with topic.reader() as reader:
            reading.set()
            found.append(reader.read(0, 0, wait_ms=120_000))

    thread = threading.Thread(target=read)
    thread.start()
    assert reading.wait(120)
    started_s = time.monotonic()
    writer.append(0, [b"late"])
    thread.join(120)
    assert found[0].values == [b"late"]
    assert time.monotonic() - started_s < 60


def test_a_position_beyond_the_end_is_refused_with_both_numbers(writer: Writer, reader: Reader) -> None:
    writer.append(0, [b"a", b"b"])
    assert len(reader.read(0, 2)) == 0
    with pytest.raises(PositionLost, match=r"position 3 is outside the readable range \[0, 2\]"):
        reader.read(0, 3)


def test_a_position_before_the_earliest_is_refused_with_both_numbers(place: Place) -> None:
    with place.create_fading() as topic, topic.reader() as reader:
        assert reader.read(0, 0, max_records=1, wait_ms=2_000).values == [b"0"]
        place.fade(topic)
        earliest = reader.earliest(0)
        assert 0 < earliest < reader.end(0) == 20
        with pytest.raises(
            PositionLost, match=rf"position 0 is outside the readable range \[{earliest}, 20\]"
        ) as caught:
            reader.read(0, 0, wait_ms=100)
        assert caught.value.help
        assert values_of(read_all(reader)) == [b"%d" % at for at in range(earliest, 20)]


def test_a_lost_position_is_refused_when_a_reader_is_opened(place: Place) -> None:
    with place.create_fading() as topic:
        place.fade(topic)
        for lost in (0, 21):
            with pytest.raises(PositionLost, match=f"position {lost} is outside"):
                topic.reader(positions=[Position(topic.topic_id, 0, lost)])
        topic.reader(positions=[Position(topic.topic_id, 0, 20)]).close()


def test_a_reader_reads_only_the_partitions_it_was_opened_for(topic: Topic) -> None:
    with topic.reader([1]) as reader:
        assert reader.end(1) == 0
        with pytest.raises(TopicMissing, match="not opened for partition 0"):
            reader.read(0, 0)
        with pytest.raises(TopicMissing, match="not opened for partition 0"):
            reader.earliest(0)


def test_the_first_offset_at_or_after_a_time_is_found(writer: Writer, reader: Reader) -> None:
    times = [NOW_MS + 10, NOW_MS + 30, NOW_MS + 20, NOW_MS + 40]
    for stamped_ms in times:
        writer.append(0, [b"x"], timestamps_ms=[stamped_ms])
    wanted = {
        0: 0,
        NOW_MS + 10: 0,
        NOW_MS + 11: 1,
        NOW_MS + 30: 1,
        NOW_MS + 31: 3,
        NOW_MS + 40: 3,
        NOW_MS + 41: 4,
    }
    assert {at_ms: reader.offset_for_time(0, at_ms) for at_ms in wanted} == wanted


@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS,
        TopicSettings(partitions=3, retention_ms=5_000_000, retention_bytes=7_000_000, record_bytes_max=1_000),
        TopicSettings(compacted=True, retention_ms=-1, tombstones_keep_ms=5_000),
        TopicSettings(compacted=True, retention_ms=9_000_000),
    ],
)
def test_settings_are_what_the_topic_was_created_with(place: Place, settings: TopicSettings) -> None:
    with place.create(settings) as topic:
        assert topic.settings() == settings
        with place.open(topic) as again:
            assert (again.topic_id, again.partitions) == (topic.topic_id, settings.partitions)
            assert again.settings() == settings
            assert again.settings().keeps_history() == (settings.retention_ms == -1)


def test_a_topic_is_created_once(topic: Topic) -> None:
    with pytest.raises(TopicExists, match="the same settings"):
        create_topic(topic.url, SETTINGS, ACCESS)
    with create_topic(topic.url, SETTINGS, ACCESS, exist_ok=True) as same:
        assert same.topic_id == topic.topic_id
    other = replace(SETTINGS, retention_ms=1_000, partitions=3)
    with pytest.raises(TopicExists, match="partitions: 3 -> 2, retention_ms: 1000 -> -1"):
        create_topic(topic.url, other, ACCESS, exist_ok=True)


def test_a_missing_topic_is_said_to_be_missing(place: Place) -> None:
    url = place.new_url()
    with pytest.raises(TopicMissing):
        open_topic(url, ACCESS)
    with pytest.raises(TopicMissing):
        delete_topic(url, ACCESS)


def test_a_missing_partition_is_said_to_be_missing(topic: Topic, writer: Writer) -> None:
    with pytest.raises(TopicMissing, match="no partition 2"):
        topic.reader([2])
    with pytest.raises(TopicMissing, match="no partition 2"):
        writer.append(2, [b"a"])
    with pytest.raises(TopicMissing, match="no partition -1"):
        writer.send(-1, b"a")


def test_a_deleted_topic_stops_its_readers_and_writers(topic: Topic, writer: Writer, reader: Reader) -> None:
    writer.append(0, [b"a"])
    reader.read(0, 0, wait_ms=2_000)
    delete_topic(topic.url, ACCESS)
    with pytest.raises(TopicMissing):
        _read_until_refused(reader, 1)
    with pytest.raises(TopicMissing):
        writer.append(0, [b"b"])


def test_a_recreated_topic_is_never_taken_for_the_old_one(topic: Topic, writer: Writer, reader: Reader) -> None:
    writer.append(0, [b"old"] * 3)
    assert len(reader.read(0, 0, wait_ms=2_000)) == 3
    delete_topic(topic.url, ACCESS)
    with create_topic(topic.url, SETTINGS, ACCESS) as new, new.writer() as new_writer:
        new_writer.append(0, [b"new"] * 9)
        assert new.topic_id != topic.topic_id
        with pytest.raises(TopicReplaced, match=topic.topic_id) as caught:
            _read_until_refused(reader, 3)
        assert new.topic_id in str(caught.value)
        with pytest.raises(TopicReplaced):
            writer.append(0, [b"stray"])
        with pytest.raises(TopicReplaced, match=topic.topic_id):
            new.reader(positions=[Position(topic.topic_id, 0, 3)])
        with new.reader() as new_reader:
            assert values_of(read_all(new_reader)) == [b"new"] * 9


def _read_until_refused(reader: Reader, offset: int) -> None:
    """A broker may take a moment to notice; until then a reader gets nothing, and never a wrong record."""
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        assert len(reader.read(0, offset, wait_ms=100)) == 0


def test_a_record_too_large_is_refused_before_it_is_sent(topic: Topic, writer: Writer, reader: Reader) -> None:
    writer.append(0, [bytes(19_990)], [bytes(10)])
    with pytest.raises(Oversize, match="20001 bytes is larger than the topic's limit of 20000"):
        writer.append(0, [b"fits", bytes(19_991)], [None, bytes(10)])
    with pytest.raises(Oversize, match="20001 bytes"):
        writer.send(0, bytes(20_001))
    writer.flush()
    assert reader.end(0) == 1
    assert len(reader.read(0, 0, wait_ms=2_000).values[0] or b"") == 19_990


def test_an_append_larger_than_a_record_may_be_is_no_matter(writer: Writer, reader: Reader) -> None:
    wanted = [b"%04d" % at + bytes(6_000) for at in range(40)]
    assert writer.append(0, wanted).tolist() == list(range(40))
    assert values_of(read_all(reader)) == wanted


def test_columns_that_do_not_fit_together_are_refused(writer: Writer, reader: Reader) -> None:
    with pytest.raises(UsageError, match="2 values, 1 keys"):
        writer.append(0, [b"a", b"b"], [b"k"])
    with pytest.raises(UsageError, match="2 values"):
        writer.append(0, [b"a", b"b"], timestamps_ms=[1])
    with pytest.raises(BadRecord, match="timestamp -1 ms"):
        writer.append(0, [b"a"], timestamps_ms=[-1])
    with pytest.raises(BadRecord, match="beyond 64 bits"):
        writer.send(0, b"a", timestamp_ms=2**63)
    writer.flush()
    assert reader.end(0) == 0


def test_what_was_sent_is_there_after_flush(topic: Topic, reader: Reader) -> None:
    with topic.writer(WriterSettings(send_records_max=8)) as writer:
        for at in range(20):
            writer.send(at % 2, b"%d" % at, b"k", NOW_MS + at)
        writer.flush()
        assert (reader.end(0), reader.end(1)) == (10, 10)
        writer.send(0, b"last")
    assert values_of(read_all(reader, 0))[-2:] == [b"18", b"last"]
    assert read_all(reader, 1)[0].timestamps_ms.tolist()[:2] == [NOW_MS + 1, NOW_MS + 3]


def test_the_buffer_of_sent_records_is_bounded(topic: Topic, reader: Reader) -> None:
    with topic.writer(WriterSettings(buffer_bytes_max=1_000)) as writer:
        for _ in range(5):
            writer.send(0, bytes(400))
        assert reader.end(0) == 4


def test_flush_reports_everything_that_was_not_delivered(topic: Topic, writer: Writer) -> None:
    for at in range(3):
        writer.send(at % 2, b"%d" % at)
    delete_topic(topic.url, ACCESS)
    with pytest.raises(
        NotDelivered,
        match=r"partition 0: 2 \(topic .* does not exist.*\); partition 1: 1 \((not tried|topic .* does not exist)",
    ) as caught:
        writer.flush()
    assert caught.value.help
    writer.flush()


def test_writers_and_readers_of_many_threads_lose_nothing(topic: Topic) -> None:
    appends, size = 30, 20
    found: list[list[bytes | None]] = [[], []]

    def write(number: int) -> None:
        with topic.writer() as writer:
            for turn in range(appends):
                writer.append(0, [b"%d-%d-%d" % (number, turn, at) for at in range(size)])

    def read(values: list[bytes | None]) -> None:
        deadline_s = time.monotonic() + 200
        with topic.reader([0]) as reader:
            offset = 0
            while len(values) < 3 * appends * size and time.monotonic() < deadline_s:
                records = reader.read(0, offset, max_records=500, wait_ms=1_000)
                assert records.offsets.tolist() == list(range(offset, offset + len(records)))
                values.extend(records.values)
                offset = records.next_offset

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    threads += [threading.Thread(target=read, args=(values,)) for values in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert found[0] == found[1]
    for number in range(3):
        own = [value for value in found[0] if value and value.startswith(b"%d-" % number)]
        assert own == [b"%d-%d-%d" % (number, turn, at) for turn in range(appends) for at in range(size)]


def test_many_partitions_are_kept_apart(place: Place) -> None:
    with place.create(replace(SETTINGS, partitions=12)) as topic, topic.writer() as writer:
        for partition in range(12):
            writer.append(partition, [b"%d" % partition] * (partition + 1))
        with topic.reader() as reader:
            for partition in range(12):
                assert values_of(read_all(reader, partition)) == [b"%d" % partition] * (partition + 1)


def test_many_partitions_are_read_at_once(place: Place) -> None:
    with place.create(replace(SETTINGS, partitions=12)) as topic, topic.writer() as writer, topic.reader() as reader:
        for partition in range(1, 12):
            for at in range(partition):
                writer.send(partition, b"%d-%d" % (partition, at))
        writer.flush()
        positions, found = dict.fromkeys(range(12), 0), [[] for _ in range(12)]  # type: ignore[var-annotated]
        while sum(map(len, found)) < sum(range(12)):
            many = reader.read_many(positions, max_records=4, wait_ms=5_000)
            assert [records.partition for records in many] == list(positions)
            assert 0 < max(map(len, many)) <= 4
            for records in many:
                found[records.partition] += records.values
                positions[records.partition] = records.next_offset
        assert found == [[b"%d-%d" % (partition, at) for at in range(partition)] for partition in range(12)]
        assert reader.read_many({}, wait_ms=5_000) == []
        with pytest.raises(PositionLost, match="partition 3: position 99"):
            reader.read_many({2: 0, 3: 99})
        with pytest.raises(TopicMissing, match="not opened for partition 12"):
            reader.read_many({12: 0})


def test_many_idle_partitions_are_waited_for_together(writer: Writer, reader: Reader) -> None:
    started_s = time.monotonic()
    assert [len(records) for records in reader.read_many({0: 0, 1: 0}, wait_ms=150)] == [0, 0]
    assert 0.1 < time.monotonic() - started_s < ACCESS.answer_wait_ms / 1_000
    found: list[list[Records]] = []
    thread = threading.Thread(target=lambda: found.append(reader.read_many({0: 0, 1: 0}, wait_ms=120_000)))
    thread.start()
    writer.append(1, [b"late"])
    thread.join(120)
    assert [records.values for records in found[0]] == [[], [b"late"]]


@pytest.mark.parametrize("limits", [{"max_records": 0}, {"max_bytes": 0}, {"max_records": -1}])
def test_a_read_of_nothing_is_refused(writer: Writer, reader: Reader, limits: dict[str, int]) -> None:
    writer.append(0, [b"a"])
    with pytest.raises(UsageError, match="ask for at least 1 of each"):
        reader.read(0, 0, **limits)
    with pytest.raises(UsageError, match="ask for at least 1 of each"):
        reader.read_many({0: 0}, **limits)


def test_a_slice_of_no_records_skips_none(writer: Writer, reader: Reader) -> None:
    writer.append(0, [b"a", b"b", b"c"])
    records = reader.read(0, 0, wait_ms=2_000)
    starts = {start: records.slice(start, start) for start in range(4)}
    assert {start: (len(none), none.next_offset) for start, none in starts.items()} == {at: (0, at) for at in range(4)}
    assert (records.slice(1, 99).next_offset, records.slice(1, 2).next_offset) == (3, 2)


def test_what_is_appended_and_read_is_counted_by_topic(topic: Topic, writer: Writer, reader: Reader) -> None:
    from prometheus_client import REGISTRY

    writer.append(0, [b"abc", None], [b"k", b"key"])
    writer.send(1, b"defg")
    writer.flush()
    reader.read(0, 0, wait_ms=5_000)
    reader.read_many({0: 1, 1: 0}, wait_ms=5_000)
    labels = {"topic": topic.url.rpartition("/")[2]}
    wanted = {"records_appended": 3, "appended_bytes": 11}
    found = {noun: REGISTRY.get_sample_value(f"streamlearn_topics_{noun}_total", labels) for noun in wanted}
    assert found == wanted
    assert REGISTRY.get_sample_value("streamlearn_topics_records_read_total", labels) in (3, 4)
    assert (REGISTRY.get_sample_value("streamlearn_topics_read_bytes_total", labels) or 0) >= 7


def test_a_compacted_topic_wants_keys_and_takes_tombstones(place: Place) -> None:
    with place.create(TopicSettings(compacted=True, retention_ms=-1)) as topic, topic.writer() as writer:
        with pytest.raises(BadRecord, match="without a key"):
            writer.append(0, [b"a"])
        with pytest.raises(BadRecord, match="without a key"):
            writer.send(0, b"a")
        writer.append(0, [b"a", None], [b"k", b"k"])
        with topic.reader() as reader:
            assert values_of(read_all(reader)) == [b"a", None]
