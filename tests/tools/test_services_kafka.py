"""Kafka: stock to its clients, and on loopback; tests/topics/test_kafka_down.py has how it is back after a kill."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic
from kafka.errors import KafkaTimeoutError

from streamlearn.errors import ServiceError
from tools.services import Kafka
from tools.services.ports import LOOPBACK

__all__: list[str] = []

_STOCK = {
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
}


def _create(address: str, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        admin.create_topics([NewTopic(name=topic, num_partitions=1, replication_factor=1)])
    finally:
        admin.close()


def _produce(address: str, topic: str, values: list[bytes]) -> None:
    producer = KafkaProducer(bootstrap_servers=address, acks="all")
    try:
        for value in values:
            producer.send(topic, value, partition=0)
        producer.flush(timeout=120)
    finally:
        producer.close()


def _consume(address: str, topic: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=address, auto_offset_reset="none", enable_auto_commit=False)
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        values: list[bytes] = []
        deadline_s = time.monotonic() + 120
        while len(values) < count and time.monotonic() < deadline_s:
            for records in consumer.poll(timeout_ms=200).values():
                values += [record.value for record in records]
        return values
    finally:
        consumer.close()


def test_the_shared_kafka_is_on_loopback_and_serves_records(kafka: Kafka, topic_name: str) -> None:
    assert kafka.address.startswith(f"{LOOPBACK}:")
    _create(kafka.address, topic_name)
    _produce(kafka.address, topic_name, [b"a", b"b"])
    assert _consume(kafka.address, topic_name, 2) == [b"a", b"b"]


def test_a_topic_has_the_time_and_retention_settings_of_a_stock_broker(kafka: Kafka, topic_name: str) -> None:
    _create(kafka.address, topic_name)
    admin = KafkaAdminClient(bootstrap_servers=kafka.address)
    try:
        topic = ConfigResource(ConfigResourceType.TOPIC, topic_name)
        settings = admin.describe_configs([topic], config_filter="all")["topic"][topic_name]
    finally:
        admin.close()
    assert {name: settings[name]["value"] for name in _STOCK} == _STOCK


def test_a_topic_is_not_made_by_writing_to_it(kafka: Kafka, topic_name: str) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka.address, max_block_ms=200)
    with contextlib.suppress(KafkaTimeoutError):
        producer.send(topic_name, b"a")
    producer.close()
    admin = KafkaAdminClient(bootstrap_servers=kafka.address)
    try:
        assert topic_name not in admin.list_topics()
    finally:
        admin.close()


def test_all_that_kafka_writes_is_in_its_folder(kafka: Kafka) -> None:
    """Every file it holds open for writing, but for pipes and devices."""
    outside = set()
    for descriptor in Path(f"/proc/{kafka.pid}/fd").iterdir():
        try:
            target, flags = (
                descriptor.readlink(),
                Path(f"/proc/{kafka.pid}/fdinfo/{descriptor.name}").read_text(),
            )
        except FileNotFoundError:
            continue  # closed meanwhile
        writable = int(flags.split("flags:")[1].split()[0], 8) & 0b11
        if writable and target.is_absolute() and target.is_file() and not target.is_relative_to(kafka.folder):
            outside.add(target)
    assert outside == set()


def test_without_java_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ServiceError, match="no java in PATH") as caught:
        Kafka.start(tmp_path / "kafka")
    assert "default-jre-headless" in caught.value.help


@pytest.mark.parametrize("stated", ["11.0.2", "1.8.0"])
def test_an_old_java_is_refused_with_its_version(stated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch(0o755)
    (tmp_path / "release").write_text(f'JAVA_VERSION="{stated}"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ServiceError, match=f"is Java {stated}, and 17 or newer is needed"):
        Kafka.start(tmp_path / "kafka")
