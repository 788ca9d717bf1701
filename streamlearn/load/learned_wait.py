"""LearnedWait: holds a replay until nodes serve everything that was due. It writes nothing and asks no node."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import ServiceError, UsageError
from streamlearn.ingest.output.progress_log import ProgressLog
from streamlearn.samples import SampleCodec
from streamlearn.times import time_text
from streamlearn.versions.format.log import read_manifest
from streamlearn.versions.pointer.model import Model
from streamlearn.versions.pointer.moves import taints_of

__all__ = ["LearnedWait"]

_LOOK_S, _READ_WAIT_MS = 0.1, 50


class LearnedWait:
    """Waits for ingest, then for the trainer, then for the nodes of an application; they run elsewhere.

    A version that the pointer does not follow (rejected, held back, or beside a canary) is not waited for. `seconds` is
    the longest wait for each of the three.

    Raises:
        UsageError: The application's settings let nobody tell what is learned or served.
    """

    def __init__(self, folder: AppFolder, model: Model, seconds: float = 300.0, *, clock: Clock = SYSTEM_CLOCK) -> None:
        ingest, unfit = folder.settings.ingest, _unfit(folder, model)
        if unfit:
            message = f"--every cannot be used: {unfit}"
            raise UsageError(message, help="change that setting, or leave --every out")
        self._late_ms = round((ingest.out_of_orderness_s + ingest.tick_s) * 1_000)
        self._model, self._seconds, self._clock = model, seconds, clock
        self._codec = SampleCodec(folder.app, folder.settings.samples)
        self._folder = folder
        self._needed: dict[int, int] = {}  # by partition of the samples, the offset after the last message with rows

    def __enter__(self) -> Self:
        """Open the topics, which must exist by now, and begin where the samples end."""
        folder = self._folder
        with ExitStack() as ends:
            ends.callback(self._model.close)
            self._progress = ends.enter_context(ProgressLog.open(folder.topic_url("progress"), folder.access))
            topic = ends.enter_context(folder.open_topic("samples"))
            self._reader = ends.enter_context(topic.reader())
            self._read = {partition: self._reader.end(partition) for partition in range(topic.partitions)}
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def until(self, time_ms: int, stop: threading.Event) -> None:
        """Wait until nodes serve what was due at an event time; returns early when `stop` is set.

        Raises:
            ServiceError: One of the three did not get there in time.
        """
        due_ms = time_ms - self._late_ms
        self._wait("ingest has not joined", time_ms, lambda: self._is_joined(due_ms), stop)
        self._note_rows(stop)
        self._wait("no version has learned", time_ms, self._is_judged, stop)
        self._wait("not every node answers with", time_ms, self._is_served, stop)

    def _wait(self, what: str, time_ms: int, is_done: Callable[[], bool], stop: threading.Event) -> None:
        end_s = self._clock.monotonic_s() + self._seconds
        while not (stop.is_set() or is_done()):
            if self._clock.monotonic_s() >= end_s:
                message = f"{what} the events up to {time_text(time_ms)} after {self._seconds:g} s"
                help = "a replay with --every needs the loop beside it: `streamlearn up APP`, with a short "
                raise ServiceError(message, help=help + "publisher.publish_interval_s")
            self._clock.sleep(_LOOK_S)

    def _is_joined(self, due_ms: int) -> bool:
        lots = self._progress.standing().lots.values()
        count = max((lot.lineage.lots_count for lot in lots), default=0)
        reached_ms = [lot.watermark_ms for lot in lots if lot.lot < count]
        return bool(reached_ms) and len(reached_ms) == count and min(reached_ms) >= due_ms

    def _note_rows(self, stop: threading.Event) -> None:
        """Read what ingest has written since the last time; trainers publish nothing for messages without rows."""
        for partition in self._read:
            end = self._reader.end(partition)
            while self._read[partition] < end and not stop.is_set():
                records = self._reader.read(partition, self._read[partition], wait_ms=_READ_WAIT_MS)
                for offset, value in zip(records.offsets.tolist(), records.values, strict=True):
                    if value is not None and len(self._codec.decode(value)):
                        self._needed[partition] = offset + 1
                self._read[partition] = records.next_offset

    def _is_judged(self) -> bool:
        """Whether the newest version has learned all rows, and is judged."""
        known = self._model.history.read()
        if not known or known[-1].outcome is None:
            return False
        newest = known[-1]
        manifest = read_manifest(self._model.store, self._model.history.folder(newest.ref))
        learned = {one.partition: one.offset for one in manifest.samples_positions}
        return all(learned.get(partition, 0) >= offset for partition, offset in self._needed.items())

    def _is_served(self) -> bool:
        """Whether the pointer has followed the newest version where it may, and all nodes that answer the pointer."""
        pointer, known, settings = self._model.pointer, self._model.history.read(), self._model.settings
        newest, active = known[-1], pointer.active_version
        is_held = newest.outcome == "unscored" and settings.judge.unscored == "hold"
        is_clean = newest.version not in taints_of(pointer, known) and newest.is_promotable(pointer.accepted)
        is_free = settings.publisher.promote and not pointer.held and pointer.canary is None
        if is_clean and is_free and not is_held and active < newest.version:
            return False
        answering = [node.active for node in self._model.nodes()[0] if node.state in ("ready", "stale")]
        return bool(answering) and all(version == active for version in answering)


def _unfit(folder: AppFolder, model: Model) -> str:
    """Return why nobody can tell what is learned or served; empty if it can be told."""
    if folder.settings.topics.time != "event":
        return 'topics.time is "wall", and the wall clock waits for no replay'
    if folder.settings.trainer.order == "strict":
        return 'trainer.order is "strict", which waits for full steps'
    return "" if model.registry is not None else "the application has no registry, where nodes say what they serve"
