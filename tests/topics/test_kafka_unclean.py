"""Kafka that loses: after an unclean election no reader takes other records for those that were lost.

Topics that `streamlearn topics` makes do not lose, as `streamlearn doctor` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamlearn.apps import load_app
from streamlearn.cli.doctor.app_findings import app_findings
from streamlearn.cli.main import cli
from streamlearn.errors import PositionLost
from streamlearn.testing import wait_until
from streamlearn.topics import Position, Reader, Records, Topic, open_topic
from tools.services import KafkaCluster

__all__: list[str] = []

_KEPT, _LOST, _NEW = 100, 50, 100


@pytest.fixture
def topic(own_kafka_cluster: KafkaCluster, topic_name: str) -> Iterator[Topic]:
    own_kafka_cluster.create_topic(topic_name, [2, 3], {"min.insync.replicas": "1"})
    with open_topic(f"kafka://{own_kafka_cluster.address}/{topic_name}") as topic:
        yield topic


def test_topics_made_on_three_brokers_are_safe_until_somebody_changes_them(
    own_kafka_cluster: KafkaCluster, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text("from streamlearn.testing import small_app\n\napp = small_app()\n")
    root = f"topics.root=kafka://{own_kafka_cluster.address}"
    assert CliRunner().invoke(cli, ["topics", str(tmp_path), "--create", "1", "--set", root]).exit_code == 0
    reach = "topics.reach_s=120"  # a loaded machine may need longer than the 3 s for which people wait
    assert {finding.state for finding in app_findings(tmp_path, [root, reach])} == {"ok"}
    name = load_app(tmp_path).topic_url("samples").rpartition("/")[2]
    own_kafka_cluster.set_topic(name, {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"})
    found = {finding.what: finding.detail for finding in app_findings(tmp_path, [root, reach])}
    assert "for samples:" in found["unclean elections"]
    assert "for samples:" in found["replicas in sync"]


def test_a_log_that_lost_what_was_read_and_has_grown_again_is_noticed_by_every_reader(
    own_kafka_cluster: KafkaCluster, topic: Topic
) -> None:
    name = topic.url.rpartition("/")[2]
    with topic.reader() as reader, topic.reader() as slow, topic.writer() as writer:
        writer.append(0, [b"kept"] * _KEPT)
        first = read_to(slow, _KEPT // 2)
        assert len(first) == _KEPT // 2

        def lose() -> None:
            writer.append(0, [b"lost"] * _LOST)
            read.append(read_to(reader, _KEPT + _LOST))

        read: list[Records] = []
        own_kafka_cluster.elect_unclean(name, lose)
        with topic.writer() as after:
            assert after.append(0, [b"new"] * _NEW)[0] == _KEPT

        end, epoch = _KEPT + _LOST, read[0].leader_epoch  # 0, unless a broker was lost for a while
        assert epoch >= first.leader_epoch >= 0
        with pytest.raises(PositionLost, match=f"position {end} .* leader epoch {epoch}, .* from offset {_KEPT} on"):
            reader.read(0, end, wait_ms=120_000)
        with pytest.raises(PositionLost, match=r"unclean\.leader\.election\.enable=false"):
            topic.reader(positions=[Position(topic.topic_id, 0, end, read[0].leader_epoch)])
        with topic.reader(positions=[Position(topic.topic_id, 0, end)]) as unknowing:
            assert unknowing.read(0, end, wait_ms=120_000).values[0] == b"new"
        # What was read before the log parted is whole, and goes on into the new epoch.
        kept = Position(topic.topic_id, 0, _KEPT // 2, first.leader_epoch)
        with topic.reader(positions=[kept]) as restarted:
            for going_on in (slow, restarted):
                assert read_to(going_on, _KEPT, begin=_KEPT // 2).leader_epoch == first.leader_epoch
                rest = read_to(going_on, _KEPT + _NEW, begin=_KEPT)
                assert rest.values[-1] == b"new"
                assert rest.leader_epoch > epoch


def test_a_killed_broker_loses_nothing_and_is_in_sync_again_once_it_is_back(
    own_kafka_cluster: KafkaCluster, topic: Topic
) -> None:
    name = topic.url.rpartition("/")[2]
    with topic.reader() as reader, topic.writer() as writer:
        writer.append(0, [b"before"] * _KEPT)
        assert read_to(reader, _KEPT).leader_epoch >= 0  # 0, unless a broker was lost for a while
        own_kafka_cluster.brokers[2].kill()
        writer.append(0, [b"meanwhile"] * _KEPT)
        wait_until(lambda: own_kafka_cluster.partition(name)["leader_id"] == 3, "broker 3 to lead")
        assert read_to(reader, 2 * _KEPT, begin=_KEPT).leader_epoch > 0
        own_kafka_cluster.brokers[2].launch()
        wait_until(lambda: set(own_kafka_cluster.partition(name)["isr_nodes"]) == {2, 3}, "broker 2 in sync")


def read_to(reader: Reader, end: int, begin: int = 0) -> Records:
    """Read on until an offset; gives the last records."""
    records = [reader.read(0, begin, max_records=end - begin)]
    wait_until(lambda: reached(reader, records, end), f"records up to {end}")
    return records[0]


def reached(reader: Reader, records: list[Records], end: int) -> bool:
    offset = records[0].next_offset
    if offset < end:
        records[0] = reader.read(0, offset, max_records=end - offset, wait_ms=100)
    return records[0].next_offset >= end
