"""Samples that are deleted: none that matter while training is quiet, and what is said of those that were needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.apps import AppFolder
from streamlearn.errors import PositionLost
from streamlearn.samples import SampleBatch, SampleCodec
from streamlearn.testing import ManualClock, memory_topic
from streamlearn.topics import Position, Reader, Records, Topic, TopicSettings
from streamlearn.trainer.intake.extract import rows_of
from streamlearn.trainer.learning_loop import LearnedStep
from streamlearn.trainer.trainer import Trainer, TrainReport
from streamlearn.versions import Chain, Request, Requests
from tests.trainer.failing import Failing
from tests.trainer.runs import local_client, store_of, until_end
from tests.trainer.stream import T_MS, learnable_folder, messages_of
from tests.trainer.toy import Toy

PARTITIONS, RETENTION_S, INTERVAL_S = 2, 1_200.0, 60.0
SETTINGS = {
    "trainer": {"step_rows": 64, "poll_s": 0.001, "step_wait_s": 1.0},
    "publisher": {"publish_interval_s": INTERVAL_S},
}
Messages = list[tuple[int, SampleBatch]]


class Shop:
    """An application, its samples in memory, and a clock that both go by."""

    def __init__(self, folder: AppFolder, topic: Topic, clock: ManualClock) -> None:
        self.folder, self.topic, self.clock = folder, topic, clock
        self.messages = messages_of(folder.app, 8, partitions=PARTITIONS)
        self._codec = SampleCodec(folder.app, folder.settings.samples)

    def write(self, messages: Messages) -> None:
        with self.topic.writer() as writer:
            for partition, batch in messages:
                writer.append(partition, [self._codec.encode(batch)])

    def train(self, *, until: Any = None, stop: threading.Event | None = None, show: Any = None, **more: Any) -> Any:
        with local_client(self.folder) as client:
            trainer = Trainer(self.folder, Toy(), self.topic, client, store_of(self.folder), clock=self.clock, **more)
            until = until_end(self.topic) if until is None else until
            return trainer.run(stop or threading.Event(), until=until, show=show or (lambda one: None))

    def lose(self) -> tuple[int, ...]:
        """Let time pass until all that is there now is deleted; gives where partitions begin then."""
        self.clock.sleep(2 * RETENTION_S)
        self.topic.maintain()
        with self.topic.reader() as reader:
            return tuple(reader.earliest(partition) for partition in range(PARTITIONS))

    @property
    def version(self) -> Chain:
        return Chain.find(store_of(self.folder), self.folder.app.name)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where the newest version says that samples go on."""
        return tuple(one.offset for one in self.version.manifest.positions)


@pytest.fixture(params=["arrival", "strict"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    clock = ManualClock(T_MS)
    kept = TopicSettings(partitions=PARTITIONS, retention_ms=round(RETENTION_S * 1e3), segment_bytes=1)
    settings = SETTINGS | {"trainer": SETTINGS["trainer"] | {"order": request.param}}
    with memory_topic(kept, clock) as topic:
        yield Shop(learnable_folder(tmp_path, settings), topic, clock)


def nothing_new(messages: Messages, kind: str, later_ms: int) -> Messages:
    """A message for each partition that has nothing to learn; their watermark is somewhat later."""
    first = dict(reversed(messages))
    if kind == "empty":
        first = {partition: rows_of(batch, np.arange(0)) for partition, batch in first.items()}
    watermark_ms = messages[-1][1].header.watermark_ms + later_ms
    return [
        (at, replace(batch, header=replace(batch.header, watermark_ms=watermark_ms)))
        for at, batch in sorted(first.items())
    ]


@pytest.mark.parametrize("kind", ["empty", "repeated"])
def test_a_shop_that_has_nothing_to_learn_for_longer_than_samples_are_kept_goes_on(
    shop: Shop, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By this clock the shop is silent, so that stages would be looked at less often than by the wall's.
    monkeypatch.setattr("streamlearn.trainer.stages._QUIET_LOOK_S", 0.01)
    monkeypatch.setattr("streamlearn.trainer.intake.feed._QUIET_WAIT_S", 0.01)
    shop.write(shop.messages)
    learned = shop.train().tally.rows
    stop, before, passed = threading.Event(), shop.offsets, count()
    until_s = shop.clock.monotonic_s() + 3 * RETENTION_S

    def pass_time(trainer: Trainer) -> None:
        with shop.topic.reader() as reader:
            ends = [reader.end(partition) for partition in range(PARTITIONS)]
        assert trainer.reached is not None
        # In strict order the last message of a partition waits for the next one of the other.
        if any(end > offset + 1 for end, offset in zip(ends, trainer.reached.offsets, strict=True)):
            shop.clock.sleep(1.5)  # what is read is learned once its step has waited
            return
        assert trainer.publisher.settle(60)  # writing a version takes none of this clock's time
        shop.clock.sleep(INTERVAL_S)
        shop.write(nothing_new(shop.messages, kind, next(passed)))
        shop.topic.maintain()
        if shop.clock.monotonic_s() > until_s:
            stop.set()

    assert shop.train(until=(), stop=stop, show=pass_time).tally.rows == 0
    with shop.topic.reader() as reader:
        begins = [reader.earliest(partition) for partition in range(PARTITIONS)]
    assert all(begin > offset for begin, offset in zip(begins, before, strict=True)), "what was next is gone"
    report = shop.train()
    assert (report.tally.rows, report.lost) == (0, {})
    assert shop.version.manifest.metrics["samples"] == learned


def test_samples_that_are_gone_end_training_with_the_way_to_go_on(shop: Shop) -> None:
    shop.write(shop.messages[:4])
    shop.train()
    before = shop.offsets
    shop.write(shop.messages[4:6])
    begins = shop.lose()
    with pytest.raises(PositionLost, match="is outside") as caught:
        shop.train()
    assert "streamlearn train APP --accept-lost" in (caught.value.help or "")
    shop.write(shop.messages[6:])
    report: TrainReport = shop.train(accept_lost=True)
    gone = {at: (before[at], begins[at]) for at in range(PARTITIONS) if before[at] < begins[at]}
    assert report.lost == gone != {}
    assert report.tally.rows > 0
    # From then on nothing has to be accepted any more.
    assert shop.train().lost == {}


def test_shards_that_are_restored_go_on_from_what_is_there_where_that_was_accepted(shop: Shop) -> None:
    shop.write(shop.messages[:4])
    shop.train()
    before, failing = shop.offsets, Failing(2)
    shop.write(shop.messages[4:])

    def lose_and_fail(done: LearnedStep) -> None:
        if failing.learned == 1:
            shop.lose()
            shop.write(shop.messages[:1])
        failing(done)

    report = shop.train(accept_lost=True, on_step=lose_and_fail)
    assert report.recoveries == 1
    assert report.lost
    assert all(gone == before[at] < earliest for at, (gone, earliest) in report.lost.items())


def test_a_request_to_go_back_to_where_samples_are_gone_is_refused_and_training_goes_on(shop: Shop) -> None:
    shop.write(shop.messages[:4])
    shop.train()
    old = shop.version
    shop.write(shop.messages[4:])
    shop.train()
    shop.lose()
    store, name = store_of(shop.folder), shop.folder.app.name
    requests = Requests(store, name, clock=shop.clock)
    requests.ask(Request(to=old.ref, by="ops"))
    shop.write(messages_of(shop.folder.app, 12, partitions=PARTITIONS)[8:])
    report = shop.train()
    assert (report.rewinds, report.lost) == (0, {})
    assert report.tally.rows > 0
    (refusal,) = requests.refusals()
    assert (refusal.seq, refusal.to, refusal.by) == (1, old.ref, "ops")
    assert "is outside" in refusal.reason
    assert shop.version.manifest.metrics["requests_obeyed"] == 1


def test_a_request_to_go_back_to_before_an_unclean_election_is_refused_and_training_continues(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch, diverged = 3, False
    with shop.topic.reader() as reader:
        memory_reader = type(reader)
    read, check = memory_reader._read, memory_reader.check

    def read_in_epoch(self: Reader, *words: Any) -> Records:
        return replace(read(self, *words), leader_epochs=[(0, epoch)])

    def check_epoch(self: Reader, position: Position) -> None:
        if diverged and position.leader_epoch == 3:
            message = "the log parted at leader epoch 3"
            raise PositionLost(message, help="")
        check(self, position)

    monkeypatch.setattr(memory_reader, "_read", read_in_epoch)
    monkeypatch.setattr(memory_reader, "check", check_epoch)
    shop.write(shop.messages[:4])
    shop.train()
    old = shop.version
    epoch = 4
    shop.write(shop.messages[4:])
    shop.train()
    assert {entry.leader_epoch for entry in old.manifest.positions} == {3}
    assert {entry.leader_epoch for entry in shop.version.manifest.positions} == {4}
    diverged = True
    requests = Requests(store_of(shop.folder), shop.folder.app.name, clock=shop.clock)
    requests.ask(Request(to=old.ref, by="ops"))
    shop.write(messages_of(shop.folder.app, 12, partitions=PARTITIONS)[8:])
    report = shop.train()
    assert report.rewinds == 0
    assert report.tally.rows > 0
    (refusal,) = requests.refusals()
    assert "leader epoch 3" in refusal.reason
