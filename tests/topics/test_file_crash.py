"""File topics under kill -9: what was acknowledged is there once and in order, wherever a writer dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamlearn.topics import Topic, TopicSettings
from streamlearn.topics.file_head import HEAD_NAME, read_head
from tests.topics.places import SETTINGS, Place

ROOT = Path(__file__).parents[2]


def run(mode: str, topic: Topic, rounds: int) -> Any:
    command = [sys.executable, "-m", "tests.topics.crashes", mode, topic.url, "7", str(rounds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def read_values(topic: Topic) -> list[bytes]:
    values: list[bytes] = []
    with topic.reader() as reader:
        offset, end = 0, reader.end(0)
        while offset < end:
            records = reader.read(0, offset, max_records=100_000, max_bytes=2**30)
            assert records.offsets.tolist() == list(range(offset, offset + len(records)))
            values += [value or b"" for value in records.values]
            offset = records.next_offset
    return values


def check(topic: Topic, acknowledged: list[tuple[int, int, int]]) -> None:
    values = [tuple(int(part) for part in value.split(b":")[:3]) for value in read_values(topic)]
    assert len(set(values)) == len(values)
    turns: dict[int, int] = {}
    for name, base, count in acknowledged:
        turn = turns.get(name, 0)
        assert values[base : base + count] == [(name, turn, at) for at in range(count)]
        turns[name] = turn + 1
    for name in {value[0] for value in values}:
        own = [value for value in values if value[0] == name]
        assert own == sorted(own)
    with topic.writer() as writer:
        assert int(writer.append(0, [b"after"])[0]) == len(values)
    assert read_values(topic)[-1] == b"after"


@pytest.mark.parametrize("segment_bytes", [1_000_000, 20_000])
def test_a_writer_killed_at_each_of_its_writes_loses_nothing_acknowledged(tmp_path: Path, segment_bytes: int) -> None:
    with Place.of("file", tmp_path).create(replace(SETTINGS, segment_bytes=segment_bytes)) as topic:
        acknowledged = run("steps", topic, 60)
        assert len(acknowledged) > 500
        check(topic, acknowledged)


def test_writers_killed_at_any_moment_lose_nothing_acknowledged(tmp_path: Path) -> None:
    with Place.of("file", tmp_path).create(replace(SETTINGS, segment_bytes=100_000)) as topic:
        acknowledged = run("moments", topic, 60)
        assert len(acknowledged) > 120
        check(topic, acknowledged)


def test_compaction_killed_at_each_of_its_writes_keeps_the_last_of_each_key(tmp_path: Path) -> None:
    settings = TopicSettings(compacted=True, retention_ms=-1, segment_bytes=1_000)
    with Place.of("file", tmp_path).create(settings) as topic:
        with topic.writer() as writer:
            writer.append(0, [b"%d" % at for at in range(60)], [b"k%d" % (at % 6) for at in range(60)])
        rounds = run("maintain", topic, 12)
        for number, (last, missing) in enumerate(rounds):
            assert last == {**{f"k{at % 5}": f"{number}:{at}" for at in range(15, 20)}, "k5": "59"}
            assert not missing
        topic.maintain()
        assert not list((tmp_path / Path(topic.url).name).rglob("*.scratch*"))


def test_retention_killed_at_each_of_its_writes_hides_no_acknowledged_record(tmp_path: Path) -> None:
    # A day passes between rounds: maintenance begins a segment for age, and is killed before it counts.
    settings = TopicSettings(retention_ms=10_000, segment_bytes=700)
    with Place.of("file", tmp_path).create(settings) as topic:
        with topic.writer() as writer:
            writer.append(0, [b"old"] * 5)
        for last, missing in run("maintain", topic, 48):
            assert len(last) >= 5
            assert not missing


@pytest.mark.parametrize("tail", [b"\0" * 7, b"\xff" * 100, b"x" * 5_000])
def test_a_torn_tail_is_cut_by_the_next_writer_and_by_no_reader(tmp_path: Path, tail: bytes) -> None:
    with Place.of("file", tmp_path).create() as topic:
        with topic.writer() as writer:
            writer.append(0, [b"a", b"b"])
        log = tmp_path / Path(topic.url).name / "0" / f"{0:020d}.log"
        whole = log.read_bytes()
        log.write_bytes(whole + tail)
        with topic.reader() as reader:
            assert reader.end(0) == 2
            assert reader.read(0, 0).values == [b"a", b"b"]
            assert len(reader.read(0, 2, wait_ms=1)) == 0
            assert log.read_bytes() == whole + tail
            with topic.writer() as writer:
                assert writer.append(0, [b"c"]).tolist() == [2]
            assert reader.read(0, 2).values == [b"c"]
        assert log.read_bytes()[: len(whole)] == whole
        assert len(log.read_bytes()) == len(whole) + 33


def test_an_append_the_disk_refuses_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamlearn.errors import NotDelivered

    with Place.of("file", tmp_path).create() as topic, topic.writer() as writer:
        writer.append(0, [b"a"])
        log = tmp_path / Path(topic.url).name / "0" / f"{0:020d}.log"
        original = os.pwrite

        def full(descriptor: int, data: bytes, position: int) -> int:
            if position >= 40:
                raise OSError(28, "No space left on device")
            return original(descriptor, bytes(data)[: 40 - position], position)

        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            with pytest.raises(NotDelivered, match=r"70 bytes could not be written: No space left on device"):
                writer.append(0, [b"b" * 38])
        assert len(log.read_bytes()) == 33
        assert writer.append(0, [b"c"]).tolist() == [1]
        head_path = log.with_name(HEAD_NAME)
        with head_path.open("rb") as head:
            assert read_head(head.fileno(), head_path).next_offset == 2


def test_fsync_of_each_batch_comes_before_its_acknowledgement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamlearn.topics import WriterSettings

    steps: list[str] = []
    pwrite, fdatasync = os.pwrite, os.fdatasync

    def writing(descriptor: int, data: bytes, position: int) -> int:
        steps.append("write head" if bytes(data[:4]) == b"SLH1" else "write log")
        return pwrite(descriptor, data, position)

    def syncing(descriptor: int) -> None:
        steps.append("sync")
        fdatasync(descriptor)

    with Place.of("file", tmp_path).create() as topic, topic.writer(WriterSettings(fsync="batch")) as writer:
        monkeypatch.setattr(os, "pwrite", writing)
        monkeypatch.setattr(os, "fdatasync", syncing)
        writer.append(0, [b"a"])
    assert steps == ["write log", "sync", "write head", "sync"]
