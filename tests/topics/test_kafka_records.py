"""Kafka records written and read by other clients: compression, transactions, headers, broker's own times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamlearn.errors import ConfigError, NotDelivered, TopicError, TopicUnreachable
from streamlearn.testing import wait_until
from streamlearn.topics import Reader, Topic, TopicSettings, Writer, create_topic, open_topic, partition_of
from streamlearn.topics.kafka_reader import KafkaReader
from tests.topics.places import ACCESS, SETTINGS, Place

pytestmark = pytest.mark.kafka


@pytest.fixture
def place(kafka: Any, tmp_path: Path) -> Iterator[Place]:
    place = Place.of("kafka", tmp_path, kafka.address)
    yield place
    place.clean()


@pytest.fixture
def topic(place: Place) -> Iterator[Topic]:
    with place.create() as topic:
        yield topic


def name_of(topic: Topic) -> str:
    return topic.url.rpartition("/")[2]


def producer_of(kafka: Any, **settings: Any) -> Any:
    from kafka import KafkaProducer

    return KafkaProducer(bootstrap_servers=kafka.address, **settings)


def test_a_stock_consumer_reads_what_we_write(kafka: Any, topic: Topic) -> None:
    from kafka import KafkaConsumer, TopicPartition

    with topic.writer() as writer:
        writer.append(1, [b"a", None, b""], [None, b"k", b""], [1_700_000_000_000, 1_700_000_000_005, 5])
    consumer = KafkaConsumer(bootstrap_servers=kafka.address, enable_auto_commit=False)
    try:
        partition = TopicPartition(name_of(topic), 1)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        found: list[Any] = []
        deadline_s = time.monotonic() + 120
        while len(found) < 3 and time.monotonic() < deadline_s:
            found += consumer.poll(timeout_ms=500).get(partition, [])
        assert [(record.offset, record.key, record.value) for record in found] == [
            (0, None, b"a"),
            (1, b"k", None),
            (2, b"", b""),
        ]
        assert [record.timestamp for record in found] == [1_700_000_000_000, 1_700_000_000_005, 5]
    finally:
        consumer.close()


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_we_read_what_a_stock_producer_writes(kafka: Any, topic: Topic, compression: str | None) -> None:
    producer = producer_of(kafka, compression_type=compression, linger_ms=20)
    for at in range(50):
        key = b"k%d" % at
        producer.send(name_of(topic), b"v%d" % at, key=key, headers=[("h", b"x" * at)], timestamp_ms=1_000 + at)
    producer.flush()
    producer.close()
    with topic.reader() as reader:
        for partition in range(2):
            wanted = [at for at in range(50) if partition_of(b"k%d" % at, 2) == partition]
            values: list[bytes | None] = []
            while len(values) < reader.end(partition):
                records = reader.read(partition, len(values), wait_ms=2_000)
                values += records.values
                assert all(
                    key == b"k" + (value or b"")[1:] for key, value in zip(records.keys, records.values, strict=True)
                )
            assert values == [b"v%d" % at for at in wanted]


def test_only_committed_transactions_are_read(kafka: Any, topic: Topic) -> None:
    producer = producer_of(kafka, transactional_id=f"t-{name_of(topic)}")
    producer.init_transactions()
    for turn, (value, commits) in enumerate(
        [(b"in", True), (b"out", False), (b"in", True), (b"out", False), (b"in", True)]
    ):
        producer.begin_transaction()
        for at in range(3):
            producer.send(name_of(topic), b"%s %d %d" % (value, turn, at), partition=0)
        producer.flush()
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    with topic.reader() as reader:
        values: list[bytes | None] = []
        # A broker says that a transaction is committed before it marks its records.
        offset, end = 0, 20
        wait_until(lambda: reader.end(0) == end, "all transactions to end")
        while offset < end:
            records = reader.read(0, offset, max_records=2, wait_ms=2_000)
            assert records.next_offset > offset
            values += records.values
            offset = records.next_offset
        assert values == [b"in %d %d" % (turn, at) for turn in (0, 2, 4) for at in range(3)]
        producer.begin_transaction()
        producer.send(name_of(topic), b"open", partition=0)
        producer.flush()
        assert reader.end(0) == end
        assert len(reader.read(0, end, wait_ms=50)) == 0
        producer.abort_transaction()
    producer.close()


def test_a_record_from_the_far_future_is_refused_in_the_brokers_words(topic: Topic) -> None:
    future_ms = time.time_ns() // 1_000_000 + 100 * 86_400_000
    with topic.writer() as writer:
        with pytest.raises(NotDelivered, match="InvalidTimestamp"):
            writer.append(0, [b"a"], timestamps_ms=[future_ms])
        assert writer.append(0, [b"b"]).tolist() == [0]


def test_times_the_broker_stamps_itself_are_given(kafka: Any, place: Place) -> None:
    from kafka.admin import KafkaAdminClient

    url = place.new_url()
    configs = {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact", "retention.ms": "5"}
    with KafkaAdminClient(bootstrap_servers=kafka.address) as admin:
        created = {"num_partitions": 1, "configs": configs}
        admin.create_topics({url.rpartition("/")[2]: created}, wait_for_metadata=True)
    before_ms = time.time_ns() // 1_000_000
    with open_topic(url, ACCESS) as topic, topic.writer() as writer, topic.reader() as reader:
        assert topic.settings().keeps_history()
        writer.append(0, [b"a", b"b"], [b"k", b"l"], [5, 6])
        stamped_ms = reader.read(0, 0, wait_ms=2_000).timestamps_ms.tolist()
        assert before_ms <= stamped_ms[0] == stamped_ms[1] <= time.time_ns() // 1_000_000
        assert reader.offset_for_time(0, before_ms) == 0


def test_settings_the_broker_refuses_are_named(place: Place) -> None:
    with pytest.raises(ConfigError, match=r"segment\.bytes"):
        create_topic(place.new_url(), TopicSettings(segment_bytes=1_000), ACCESS)


def test_a_first_record_larger_than_a_fetch_is_read(place: Place) -> None:
    with place.create(TopicSettings(record_bytes_max=3_000_000, retention_ms=SETTINGS.retention_ms)) as topic:
        with topic.writer() as writer:
            writer.append(0, [bytes(2_900_000), b"small"])
        with topic.reader() as reader:
            records = reader.read(0, 0, max_bytes=1_000, wait_ms=5_000)
            assert [len(value or b"") for value in records.values] == [2_900_000]
            assert reader.read(0, 1, max_bytes=1_000, wait_ms=5_000).values == [b"small"]


def test_a_topic_that_grows_is_said_to_have_grown(kafka: Any, topic: Topic) -> None:
    from kafka.admin import KafkaAdminClient

    hurried = replace(ACCESS, check_every_ms=100)
    with open_topic(topic.url, hurried) as opened, opened.reader() as reader, opened.writer() as writer:
        writer.append(0, [b"a"])
        with KafkaAdminClient(bootstrap_servers=kafka.address) as admin:
            admin.create_partitions({name_of(topic): 4})
        grown = "now has 4 partitions; it had 2 when it was opened"
        with pytest.raises(TopicError, match=grown):
            read_on(reader, 1)
        with pytest.raises(TopicError, match=grown):
            append_on(writer)
        with pytest.raises(TopicError, match=grown):
            opened.reader()
    with open_topic(topic.url, ACCESS) as again:
        assert again.partitions == 4


def read_on(reader: Reader, offset: int) -> None:
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        offset = reader.read(0, offset, wait_ms=50).next_offset


def append_on(writer: Writer) -> None:
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        writer.append(0, [b"more"])


def test_compressed_records_that_become_too_many_bytes_come_cut_and_others_whole(kafka: Any, topic: Topic) -> None:
    producer = producer_of(kafka, compression_type="zstd", linger_ms=0)
    for size in (600_000, 700_000, 30):
        producer.send(name_of(topic), bytes(size), partition=0).get(120)
    producer.close()
    for bytes_max, wanted in ((1_000_000, [600_000, 700_000, 30]), (200_000, [200_001, 200_001, 30])):
        access = replace(ACCESS, record_bytes_max=bytes_max)
        with open_topic(topic.url, access) as bounded, bounded.reader() as reader:
            sizes: list[int] = []
            while len(sizes) < 3:
                sizes += [len(value or b"") for value in reader.read(0, len(sizes), wait_ms=5_000).values]
            assert sizes == wanted


def test_a_writer_without_the_right_to_see_settings_writes(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from streamlearn.topics.kafka_link import KafkaLink

    monkeypatch.setattr(KafkaLink, "configs", lambda *_: (29, {}))
    with caplog.at_level("WARNING", "streamlearn"), topic.writer() as writer:
        assert writer.append(1, [b"a"]).tolist() == [0]
    assert "may not read its settings: records are checked against a record_bytes_max of 1048576" in caplog.text
    with pytest.raises(TopicUnreachable, match="TopicAuthorizationFailed"):
        topic.settings()


def test_how_long_a_broker_is_silent_is_measured(kafka: Any, topic: Topic) -> None:
    from prometheus_client import REGISTRY

    with topic.reader() as reader:
        reader.end(0)
        silence_s = REGISTRY.get_sample_value("streamlearn_topics_broker_silence_seconds", {"brokers": kafka.address})
    assert silence_s is not None
    assert 0 <= silence_s < 60


def test_whatever_kafka_python_raises_becomes_an_error_of_ours(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    from kafka.net.manager import KafkaConnectionManager

    def broken(*_: object) -> None:
        message = "of kafka-python itself"
        raise RuntimeError(message)

    with topic.reader() as reader:
        assert isinstance(reader, KafkaReader)
        monkeypatch.setattr(reader._session, "access", replace(ACCESS, unreachable_after_ms=100))
        monkeypatch.setattr(KafkaConnectionManager, "run", broken)
        with pytest.raises(TopicUnreachable, match="RuntimeError: of kafka-python itself"):
            reader.end(0)
        monkeypatch.undo()


def test_what_follows_is_fetched_while_its_reader_works(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    with topic.writer() as writer:
        for _ in range(4):
            writer.append(0, [bytes(15_000)] * 10)
    with topic.reader() as reader:
        assert isinstance(reader, KafkaReader)
        begun: list[dict[int, int]] = []
        begin = reader._begin

        def noted(leader: int, positions: dict[int, int], limits: tuple[int, int], wait_ms: int) -> None:
            begun.append(positions)
            begin(leader, positions, limits, wait_ms)

        monkeypatch.setattr(reader, "_begin", noted)
        offset = 0
        while offset < 40:
            records = reader.read(0, offset, max_bytes=200_000, wait_ms=5_000)
            assert records.offsets.tolist() == list(range(offset, offset + len(records)))
            offset = records.next_offset
            # Asked for already, unless this was the end.
            assert offset == 40 or reader._buffers or begun[-1] == {0: offset}
        assert len(begun) > 1
