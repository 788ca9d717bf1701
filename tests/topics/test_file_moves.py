"""File readers while writers move on: what does not fit together for a moment is neither damage nor skipped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from streamlearn.errors import BadRecord, PositionLost
from streamlearn.testing import ManualClock
from streamlearn.topics import Reader, Topic, TopicSettings, create_topic
from tests.topics.places import SETTINGS, FixedClock, Place


def between(reader: Reader, step: str, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something once, just before a reader's step: what another process may do between two of its looks."""
    original, left = getattr(reader, step), [act]

    def acting(*args: Any) -> Any:
        if left:
            left.pop()()
        return original(*args)

    monkeypatch.setattr(reader, step, acting)


def compacted(tmp_path: Path) -> Topic:
    topic = Place.of("file", tmp_path).create(TopicSettings(retention_ms=-1, compacted=True, segment_bytes=2_000))
    with topic.writer() as writer:
        for _ in range(20):
            writer.append(0, [b"v" * 50], [b"k"])
    return topic


def roll(topic: Topic, records: int = 60) -> None:
    with topic.writer() as writer:
        for _ in range(records):
            writer.append(0, [b"v" * 50], [b"k"])


@pytest.mark.parametrize("step", ["_base_of", "_segment", "_end_bytes"])
@pytest.mark.parametrize("start", [0, 7, 19])
def test_compaction_under_a_reader_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, start: int
) -> None:
    topic = compacted(tmp_path)
    with topic.reader() as reader:
        reader.read(0, 0, max_records=1)
        between(reader, step, lambda: roll(topic), monkeypatch)
        offset, seen = start, []
        while offset < reader.end(0):
            records = reader.read(0, offset)
            seen += records.offsets.tolist()
            offset = records.next_offset
        assert seen == sorted(set(seen))
        assert seen[-1] == 79


@pytest.mark.parametrize("step", ["_bases", "_segment", "_end_bytes"])
def test_compaction_under_a_look_for_a_time_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    topic = compacted(tmp_path)
    with topic.reader() as reader:
        between(reader, step, lambda: roll(topic), monkeypatch)
        assert reader.offset_for_time(0, 2**60) in (20, 80)


def test_damage_under_a_head_that_stands_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = compacted(tmp_path)
    log = tmp_path / Path(topic.url).name / "0" / f"{0:020d}.log"
    log.write_bytes(b"\xff" * log.stat().st_size)
    with topic.reader() as reader:
        between(reader, "_segment", lambda: roll(topic, 1), monkeypatch)
        with pytest.raises(BadRecord, match="at byte 0"):
            reader.read(0, 0)


@pytest.mark.parametrize("step", ["_base_of", "_bases", "_segment", "_end_bytes"])
@pytest.mark.parametrize("start", [0, 3, 9])
def test_retention_under_a_reader_never_passes_over_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, start: int
) -> None:
    clock = FixedClock(1_000_000)
    settings = replace(SETTINGS, retention_ms=10_000, segment_bytes=150)
    with Place.of("file", tmp_path).create(settings, clock) as topic, topic.writer() as writer:
        for at in range(20):
            writer.append(0, [b"%02d" % at], timestamps_ms=[clock.now_ms])

        def fade() -> None:
            clock.now_ms += 60_000
            topic.maintain()
            writer.append(0, [b"20"])

        with topic.reader() as reader:
            between(reader, step, fade, monkeypatch)
            with pytest.raises(PositionLost, match=r"outside the readable range \[20, 21\]"):
                read_on(reader, start)


def read_on(reader: Reader, offset: int) -> None:
    """Read to offset 20: what comes is what was asked for, none left out."""
    while offset < 20:
        records = reader.read(0, offset)
        assert records.offsets.tolist() == list(range(offset, offset + len(records)))
        assert records.next_offset == offset + len(records)
        offset = records.next_offset


def test_a_silent_partition_is_looked_at_less_often_and_a_busy_one_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    topic = create_topic(f"{tmp_path.as_uri()}/silent", TopicSettings(), clock=clock)
    with topic.reader() as reader, topic.writer() as writer:
        looks = list[float]()
        original = reader._head  # type: ignore[attr-defined]

        def head(partition: int) -> Any:
            looks.append(clock.monotonic_s())
            return original(partition)

        monkeypatch.setattr(reader, "_head", head)
        for _ in range(50):
            assert not len(reader.read(0, 0, wait_ms=200))
        # The share of a second is looked through quickly, and each second after it fewer times.
        assert 100 < len(looks) < 400
        assert max(after - before for before, after in pairwise(looks)) < 0.201
        looks[:] = []
        for _ in range(12):
            assert not len(reader.read(0, 0, wait_ms=5_000))
        # A silent minute: what comes then waits for a second at most, and each look reads the disk.
        assert 60 <= len(looks) <= 60 * 2
        assert 0.999 < max(after - before for before, after in pairwise(looks)) < 1.001
        writer.append(0, [b"v"])
        assert len(reader.read(0, 0, wait_ms=200)) == 1
        began_s, looks[:] = clock.monotonic_s(), []
        assert not len(reader.read(0, 1, wait_ms=20))
        assert looks[1] - began_s < 0.001
    topic.close()
