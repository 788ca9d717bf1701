"""File topics damaged after they were written: named by file, byte and offset, never skipped."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamlearn.errors import BadRecord, TopicMissing, TopicUnreachable
from streamlearn.topics import Topic, TopicSettings, create_topic, open_topic
from tests.topics.places import SETTINGS, Place

FRAME_BYTES = 32 + 2 + 4  # key k1, value v001


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    topic = Place.of("file", tmp_path).create(replace(SETTINGS, record_bytes_max=1_000))
    with topic.writer() as writer:
        writer.append(0, [b"v%03d" % at for at in range(5)], [b"k%d" % at for at in range(5)], list(range(5)))
    return topic


def folder_of(topic: Topic) -> Path:
    return Path(topic.url.removeprefix("file://"))


def log_of(topic: Topic, base: int = 0) -> Path:
    return folder_of(topic) / "0" / f"{base:020d}.log"


def read_until_damage(topic: Topic) -> tuple[list[bytes | None], str]:
    """What can be read before the damage, and how it is reported."""
    values: list[bytes | None] = []
    with topic.reader() as reader:
        offset = 0
        try:
            while offset < 5:
                records = reader.read(0, offset)
                assert len(records)
                values += records.values
                offset = records.next_offset
        except BadRecord as error:
            return values, error.message
    return values, ""


def test_the_bytes_of_a_topic_are_these(tmp_path: Path) -> None:
    topic = Place.of("file", tmp_path).create()
    with topic.writer() as writer:
        writer.append(0, [b"value", None], [None, b"key"], [1_700_000_000_123, 5])
    wanted = (
        "1d000000" "779b7d29" "0000000000000000" "7b68e5cf8b010000" "ffffffff" "05000000" "76616c7565"
        "1b000000" "ae27891f" "0100000000000000" "0500000000000000" "03000000" "ffffffff" "6b6579"
    )  # fmt: skip
    assert log_of(topic).read_bytes().hex() == wanted
    assert (folder_of(topic) / "0" / "head").read_bytes().hex() == (
        "534c4831" "ec1e32b6" "0000000000000000" "4800000000000000" "0200000000000000" "0000000000000000"
    )  # fmt: skip


@pytest.mark.parametrize("number", [0, 2, 4])
def test_every_flipped_bit_is_found(topic: Topic, number: int) -> None:
    log = log_of(topic)
    whole = log.read_bytes()
    for bit in range(FRAME_BYTES * 8):
        at = number * FRAME_BYTES + bit // 8
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit % 8
        log.write_bytes(damaged)
        values, message = read_until_damage(topic)
        assert values == [b"v%03d" % each for each in range(number)]
        assert f"{log}: " in message
        assert f"at byte {number * FRAME_BYTES}, where offset {number}" in message


def test_a_log_cut_at_any_byte_is_found(topic: Topic) -> None:
    log = log_of(topic)
    whole = log.read_bytes()
    for size in range(len(whole)):
        log.write_bytes(whole[:size])
        values, message = read_until_damage(topic)
        assert len(values) == size // FRAME_BYTES
        assert f"fewer bytes than were acknowledged at byte {len(values) * FRAME_BYTES}" in message
        with topic.writer() as writer, pytest.raises(BadRecord, match=f"at byte {size}, where offset 5"):
            writer.append(0, [b"more"])
        assert log.read_bytes() == whole[:size]


def test_damage_is_found_by_every_way_of_looking(topic: Topic) -> None:
    log = log_of(topic)
    damaged = bytearray(log.read_bytes())
    damaged[FRAME_BYTES + 20] ^= 1
    log.write_bytes(damaged)
    wanted = f"a wrong checksum at byte {FRAME_BYTES}"
    with topic.reader() as reader, pytest.raises(BadRecord, match=wanted):
        reader.offset_for_time(0, 4)
    assert read_until_damage(topic)[0] == [b"v000"]


@pytest.mark.parametrize("damage", [b"", b"SLH1", b"\0" * 40, b"SLH1" + b"\1" * 36])
def test_a_damaged_head_is_named(topic: Topic, damage: bytes) -> None:
    head = folder_of(topic) / "0" / "head"
    head.write_bytes(damage)
    with topic.reader() as reader, pytest.raises(BadRecord, match="is not the head of a partition"):
        reader.end(0)


@pytest.mark.parametrize(
    "damage", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "topic_id": "x", "settings": {"a": 1}}']
)
def test_a_damaged_identity_is_named(topic: Topic, damage: str) -> None:
    (folder_of(topic) / "topic.json").write_text(damage)
    with pytest.raises(BadRecord, match=r"topic\.json"):
        open_topic(topic.url)


def test_a_folder_that_is_no_topic_is_never_deleted(tmp_path: Path) -> None:
    from streamlearn.topics import delete_topic

    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    with pytest.raises(TopicMissing):
        delete_topic(f"file://{tmp_path}/precious")
    assert (tmp_path / "precious" / "file").exists()


def test_a_lost_or_damaged_index_is_made_again(tmp_path: Path) -> None:
    topic = Place.of("file", tmp_path).create(replace(SETTINGS, segment_bytes=200_000))
    with topic.writer() as writer:
        for at in range(0, 2_000, 100):
            writer.append(
                0,
                [b"%04d" % each + bytes(300) for each in range(at, at + 100)],
                timestamps_ms=list(range(at, at + 100)),
            )
    indexes = sorted((folder_of(topic) / "0").glob("*.index"))
    assert len(indexes) > 1
    for damage in (None, b"", b"SLI1" + bytes(40), b"\xff" * 200):
        for index in indexes:
            index.unlink(missing_ok=True) if damage is None else index.write_bytes(damage)
        with topic.reader() as reader:
            for offset in (0, 777, 1_234, 1_999):
                assert reader.offset_for_time(0, offset) == offset
                assert (reader.read(0, offset).values[0] or b"")[:4] == b"%04d" % offset


def test_a_foreign_file_in_a_partitions_folder_stays_and_is_no_segment(topic: Topic) -> None:
    notes = folder_of(topic) / "0" / "notes.log"
    notes.write_text("mine")
    (folder_of(topic) / "0" / "12.log").touch()
    topic.maintain()
    assert read_until_damage(topic)[0] == [b"v%03d" % at for at in range(5)]
    assert notes.read_text() == "mine"


def test_opening_a_large_topic_does_not_read_it(tmp_path: Path) -> None:
    topic = Place.of("file", tmp_path).create(replace(SETTINGS, segment_bytes=300_000))
    with topic.writer() as writer:
        for at in range(50):
            writer.append(0, [bytes(1_000)] * 100, timestamps_ms=[at] * 100)
    read_before = _bytes_read()
    with open_topic(topic.url) as again, again.reader() as reader:
        assert reader.end(0) == 5_000
        assert int(reader.read(0, 2_515, max_records=1).offsets[0]) == 2_515
        assert reader.offset_for_time(0, 30) == 3_000
    assert _bytes_read() - read_before < 1_500_000


def _bytes_read() -> int:
    return int(next(line for line in Path("/proc/self/io").read_text().splitlines() if "rchar" in line).split()[1])


def test_a_segment_that_could_not_be_opened_once_costs_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/topic"
    with create_topic(url, TopicSettings(segment_bytes=1)) as topic, topic.writer() as first, topic.writer() as second:
        first.append(0, [b"a"])
        second.append(0, [b"b"])  # begins a segment that the first writer has not open
        real_open = os.open

        def fail_for_segments(path: Any, *args: Any, **named: Any) -> int:
            if str(path).endswith(".log"):
                raise OSError(errno.EMFILE, "Too many open files", str(path))
            return real_open(path, *args, **named)

        with monkeypatch.context() as patched:
            patched.setattr(os, "open", fail_for_segments)
            with pytest.raises(TopicUnreachable, match="Too many open files"):
                first.append(0, [b"c"])
        other = real_open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
        inode = os.fstat(other).st_ino
        first.append(0, [b"d"])
        assert os.fstat(other).st_ino == inode
        os.close(other)
        with topic.reader([0]) as reader:
            values, offset = [], 0
            while offset < reader.end(0):
                records = reader.read(0, offset)
                values += records.values
                offset = records.next_offset
    assert values == [b"a", b"b", b"d"]
