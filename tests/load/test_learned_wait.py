"""LearnedWait: what a replay with `--every` waits for, one part of the loop after the other."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamlearn.apps import AppFolder, load_app
from streamlearn.errors import ServiceError, UsageError
from streamlearn.ingest.output.progress import Lineage
from streamlearn.ingest.output.progress_log import ProgressLog
from streamlearn.load.learned_wait import LearnedWait
from streamlearn.replay import open_replay_topics
from streamlearn.samples import SampleCodec
from streamlearn.settings import Settings
from streamlearn.testing import ManualClock, MemoryRegistry, small_batch
from streamlearn.versions import Node, Pointer, PointerLog, Store, open_store
from streamlearn.versions.format.record import VersionRef
from streamlearn.versions.format.verdict import Verdict, write_verdict
from streamlearn.versions.pointer.model import Model
from streamlearn.versions.pointer.moves import Canary
from tests.cli.test_replay_ask import APP
from tests.versions.history import MODEL, Trainer

TIME_MS, LINEAGE = 1_750_000_060_000, Lineage(2, "windows", "features", "impressions", "actions")


class Stepped(ManualClock):
    """A clock that does the next thing each time somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.things: Iterator[Callable[[], object]] = iter(())

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        next(self.things, lambda: None)()


@pytest.fixture
def folder(tmp_path: Path) -> AppFolder:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "app.toml").write_text(
        f'[topics]\ntime = "event"\nroot = "{(tmp_path / "topics").as_uri()}"\n[replay]\npartitions = 1\n'
    )
    folder = load_app(tmp_path)
    with open_replay_topics(folder):
        return folder


class Loop:
    """Ingest, trainer, judge, pointer and nodes; each call moves one of them on."""

    def __init__(self, folder: AppFolder) -> None:
        self._folder, self.clock, self.stop = folder, Stepped(), threading.Event()
        self.store: Store = open_store(f"memory://{uuid.uuid4().hex}")
        self.model = Model(MODEL, self.store.url, "", Settings())
        self.registry = MemoryRegistry(MODEL)
        self.model.__dict__.update(store=self.store, registry=self.registry)
        self._trainer = Trainer(self.store)
        self._log = ProgressLog.open(folder.topic_url("progress"), folder.access)
        self._run = self._log.begin(LINEAGE)

    def join(self, *lots: int) -> None:
        self._log.write(self._run, LINEAGE, dict.fromkeys(lots, TIME_MS))

    def write(self, *, rows: int) -> None:
        codec = SampleCodec(self._folder.app, self._folder.settings.samples)
        with self._folder.open_topic("samples") as topic, topic.writer() as writer:
            writer.append(0, [codec.encode(small_batch(self._folder.app, rows, rows))])

    def cut(self, version: int) -> None:
        """Cut a version that has learned as many messages."""
        self._trainer.learn(version)
        self._trainer.cut(version)

    def judge(self, outcome: str = "passed") -> None:
        last = self._trainer.last
        assert last is not None
        write_verdict(self.store, last.folder, Verdict(version=last.ref, outcome=outcome))  # type: ignore[arg-type]

    def promote(self, **more: Any) -> None:
        last = self._trainer.last
        assert last is not None
        PointerLog(self.store, MODEL).move(lambda now: Pointer(active=last.ref, **more), by="ada")

    def hold_unscored(self) -> None:
        judge = msgspec.structs.replace(self.model.settings.judge, unscored="hold")
        settings = msgspec.structs.replace(self.model.settings, judge=judge)
        self.model.__dict__.update(settings=settings)

    @property
    def last(self) -> VersionRef:
        assert self._trainer.last is not None
        return self._trainer.last.ref

    def answer(self, version: int, state: str = "ready", name: str = "a") -> None:
        self.registry.beat(Node(boot_id=name, name=name, state=state, active=version))  # type: ignore[arg-type]

    def close(self) -> None:
        self._log.close()


@pytest.fixture
def loop(folder: AppFolder) -> Iterator[Loop]:
    with closing(Loop(folder)) as loop:
        yield loop


def test_it_waits_for_ingest_the_trainer_the_judge_the_pointer_and_each_node_that_answers(
    folder: AppFolder, loop: Loop
) -> None:
    with LearnedWait(folder, loop.model, clock=loop.clock) as wait:
        loop.write(rows=2)
        loop.write(rows=2)
        loop.write(rows=0)
        things = (
            lambda: loop.join(0),
            lambda: loop.join(1),
            lambda: loop.cut(1),
            loop.judge,
            lambda: loop.cut(2),
            lambda: loop.answer(0, "starting"),
            loop.judge,
            loop.promote,
            lambda: loop.answer(1, "stale", "b"),
            lambda: loop.answer(2),
            lambda: loop.answer(2, "stale", "b"),
            pytest.fail,
        )
        loop.clock.things = iter(things)
        wait.until(TIME_MS, loop.stop)
        # Nothing is due later on that nodes do not serve already.
        loop.clock.things = iter([pytest.fail])
        wait.until(TIME_MS, loop.stop)


@pytest.mark.parametrize("why", ["rejected", "held", "canary", "unscored"])
def test_it_does_not_wait_for_a_version_that_the_pointer_does_not_follow(
    folder: AppFolder, loop: Loop, why: str
) -> None:
    loop.join(0, 1)
    loop.cut(1)
    loop.judge()
    canary = Canary(version=loop.last, share=0.5) if why == "canary" else None
    loop.promote(held=why == "held", canary=canary)
    loop.answer(1)
    if why == "unscored":
        loop.hold_unscored()
    outcome = why if why in ("rejected", "unscored") else "passed"
    with LearnedWait(folder, loop.model, clock=loop.clock) as wait:
        loop.write(rows=2)
        loop.cut(2)
        loop.clock.things = iter([lambda: loop.judge(outcome), pytest.fail])
        wait.until(TIME_MS, loop.stop)
        # Nor for later ones, which a rejected one taints.
        loop.write(rows=2)
        loop.cut(3)
        loop.clock.things = iter([lambda: loop.judge("unscored" if why == "unscored" else "passed"), pytest.fail])
        wait.until(TIME_MS, loop.stop)


@pytest.mark.parametrize(("setting", "said"), [("topics.time=wall", "topics.time"), ("trainer.order=strict", "strict")])
def test_settings_by_which_nobody_can_tell_are_refused_at_once(
    folder: AppFolder, loop: Loop, setting: str, said: str
) -> None:
    with pytest.raises(UsageError, match=f"--every cannot be used: .*{said}"):
        LearnedWait(load_app(folder.folder, [setting]), loop.model)
    with pytest.raises(UsageError, match="has no registry"):
        LearnedWait(folder, Model(MODEL, loop.store.url, "", Settings(), is_alone=True))


def test_it_says_which_part_did_not_get_there_and_ends_when_it_is_stopped(folder: AppFolder, loop: Loop) -> None:
    with LearnedWait(folder, loop.model, clock=loop.clock) as wait:
        loop.join(0)
        with pytest.raises(ServiceError, match=r"^ingest has not joined the events up to 2025-06-15"):
            wait.until(TIME_MS, loop.stop)
        loop.join(1)
        loop.write(rows=1)
        with pytest.raises(ServiceError, match=r"^no version has learned the events up to"):
            wait.until(TIME_MS, loop.stop)
        loop.cut(1)
        loop.judge()
        with pytest.raises(ServiceError, match=r"^not every node answers with the events up to"):
            wait.until(TIME_MS, loop.stop)
        loop.clock.things = iter([loop.stop.set, pytest.fail])
        wait.until(TIME_MS, loop.stop)
