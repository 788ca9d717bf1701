"""Refill: rereads samples that earlier processes learned, so that the judge can compare the first version of a run.

It learns nothing: samples only go to `RecentSamples`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import closing

from streamlearn.apps import AppFolder
from streamlearn.errors import PositionLost, StreamlearnError
from streamlearn.topics import Topic
from streamlearn.trainer.intake.feed import Until
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.intake.recent import RecentSamples
from streamlearn.trainer.intake.sample_range import SampleRange
from streamlearn.trainer.restore import check_samples_after
from streamlearn.trainer.shared_marks import SharedMarks
from streamlearn.versions import Chain, Known, Store
from streamlearn.versions.format.loading import load_bytes
from streamlearn.versions.format.manifest import Skip

__all__ = ["REREAD_ROWS_MAX", "begins_of", "refill"]

REREAD_ROWS_MAX = 1 << 22
"""Most rows that are read again. If a label window holds more, only labels with shorter windows are compared."""

_LOG = logging.getLogger("streamlearn.trainer.Refill")


def refill(
    recent: RecentSamples,
    folder: AppFolder,
    topic: Topic,
    store: Store,
    known: Sequence[Known],
    *,
    reached: Reached,
    skips: Sequence[Skip],
    steps: int,
    stop: threading.Event,
) -> int:
    """Add samples up to `reached`, which is after `steps` steps; returns the rows read.

    Only labels whose windows are closed by then are added. Samples are read from the position and with the marks of an
    older version, so that corrections are told from first rows. Where that fails, nothing is added: the judge waits for
    new samples, as for a new model.
    """
    try:
        windows_ms = sorted({group.window_s * 1_000 for group in folder.app.groups}, reverse=True)
        begins = begins_of(known, reached.watermark_ms, windows_ms, folder.settings.judge.scored_rows_max)
        chain = _earliest(topic, store, folder.app.name, begins)
        if chain is None:
            return 0
        marks = SharedMarks.of(folder.app, folder.settings.marks)
        begin = marks.load(load_bytes(store, chain.head, "marks"))
        reading = SampleRange(
            folder, topic, begin, skips,
            until=Until(dict(enumerate(reached.offsets))), keep_aside=lambda name, data: None, marks=marks,
        )  # fmt: skip
        with closing(reading.feed):
            for step in reading.feed.steps():
                if stop.is_set():
                    break
                if step is not None:
                    recent.add(step.pieces, step.reached.watermark_ms, steps)
                    marks.acknowledge(step.number)
                    reading.forget(step.reached)
        recent.add((), reached.watermark_ms)
    except StreamlearnError as error:
        _LOG.warning("recent samples cannot be read again, so versions are unscored at first: %s", error.message)
        return 0
    read = reading.cutter.counts.read
    _LOG.info("read %d rows from version %d on, for the judge", read, chain.version)
    return read


def begins_of(
    known: Sequence[Known], watermark_ms: int | None, windows_ms: Sequence[int], rows_max: int
) -> list[Known]:
    """Return the versions from which samples may be read again, oldest first; none if that is too much.

    `windows_ms` are label windows, longest first. `rows_max` rows learned after the first of them have closed windows.
    """
    if watermark_ms is None or not known:
        return []
    newest = known[-1].metrics.get("samples", 0.0)
    for window_ms in windows_ms:
        before_ms = watermark_ms - window_ms
        older = [old for old in known if old.is_whole and (old.watermark_ms is None or old.watermark_ms <= before_ms)]
        if not older:
            continue
        enough = older[-1].metrics.get("samples", 0.0) - rows_max
        first = max((at for at, old in enumerate(older) if old.metrics.get("samples", 0.0) <= enough), default=0)
        if newest - older[first].metrics.get("samples", 0.0) <= REREAD_ROWS_MAX:
            return older[first:]
    return []


def _earliest(topic: Topic, store: Store, model: str, begins: Sequence[Known]) -> Chain | None:
    """Return an early version of some whose next samples the topic still has; None if it has none of them."""
    while begins:
        chain = Chain.find(store, model, begins[0].version)
        try:
            check_samples_after(chain, topic)
        except PositionLost:
            begins = begins[(len(begins) + 1) // 2 :]
        else:
            return chain
    return None
