"""Predictions that wait for their labels, in a trainer: runs that are killed score what one run would have scored."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.apps import AppFolder
from streamlearn.samples import SampleBatch
from streamlearn.settings import ValidationSettings
from streamlearn.trainer.intake.identity import identity_of
from streamlearn.trainer.intake.recent import RecentSamples
from streamlearn.trainer.intake.refill import begins_of
from streamlearn.trainer.learning_loop import LearnedStep
from streamlearn.trainer.validation import WindowScore
from streamlearn.versions import Chain, History, Known, PointerLog, VersionRef, compact
from streamlearn.versions.format.verdict import read_verdict
from streamlearn.versions.pointer.moves import promote
from streamlearn.versions.upkeep.verification import verify
from tests.trainer.runs import run, store_of
from tests.trainer.stream import learnable_folder, messages_of, write_messages

_SEED, _KILLS, _MESSAGES = 5, 2, 170
_STRICT = {"order": "strict", "step_rows": 64, "rate": 0.01}


class _Killed(Exception):
    """A stand-in for kill -9: nothing more is written after it."""


def folder_of(path: Path, interval_s: float) -> AppFolder:
    path.mkdir()
    validation = {"windows_s": [10, 30], "summary_s": 30}
    publisher = {"publish_interval_s": interval_s}
    folder = learnable_folder(path, {"trainer": _STRICT, "publisher": publisher, "validation": validation})
    assert isinstance(folder.settings.validation, ValidationSettings)
    return folder


class Scores:
    """All scores of runs, and how often each window was scored."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], WindowScore] = {}
        self.times: dict[tuple[Any, ...], int] = {}
        self.is_dead = False

    def take(self, scores: Sequence[WindowScore]) -> None:
        # A version whose scores were not handed over is not written by a process that is dead.
        if self.is_dead:
            raise _Killed
        for score in scores:
            key = (score.label, score.begin_ms, score.end_ms, score.segment, score.text)
            assert self.known.setdefault(key, score) == score
            self.times[key] = self.times.get(key, 0) + 1


def killed_run(folder: AppFolder, scores: Scores, steps: int) -> None:
    """A run that ends, like one that is killed, once it learned so many steps, a version of which is written."""
    count = [0]

    def learned(step: LearnedStep) -> None:
        del step
        count[0] += 1
        if count[0] == steps:
            scores.is_dead = True
            raise _Killed

    scores.is_dead = False
    with pytest.raises(_Killed):
        run(folder, on_step=learned, on_scores=scores.take)
    scores.is_dead = False


def test_runs_that_are_killed_score_every_window_as_one_run_would(tmp_path: Path) -> None:
    rng, scores, expected = random.Random(_SEED), Scores(), Scores()
    folder, whole = folder_of(tmp_path / "app", 0.02), folder_of(tmp_path / "whole", 3_600)
    messages = messages_of(folder.app, _MESSAGES, rows=12)
    write_messages(folder, messages)
    write_messages(whole, messages)
    at_once = run(whole, on_scores=expected.take)
    for number in range(_KILLS):
        killed_run(folder, scores, rng.randrange(8, 12))
        if number == 1:
            compact(store_of(folder), folder.app.name)
    last = run(folder, on_scores=scores.take)
    assert any(score.is_complete and score.window_s == 30 for score in expected.known.values())
    assert scores.known == expected.known
    assert last.summary == at_once.summary
    # A run after all was scored scores nothing again.
    again = Scores()
    assert run(folder, on_scores=again.take).summary == at_once.summary
    assert again.known == {}
    assert not verify(store_of(folder), folder.app.name).defects


def judged_folder(path: Path) -> AppFolder:
    judge = {"scored_rows_min": 50, "scored_rows_max": 5_000, "norm_ratio_max": 0}
    settings = {"trainer": _STRICT, "judge": judge, "publisher": {"publish_interval_s": 0.001}}
    return learnable_folder(path, settings)


def first_scores(folder: AppFolder, after: int) -> Any:
    """What the judge says of the scores of the first version after another one."""
    store = store_of(folder)
    for number in range(after + 1, Chain.find(store, folder.app.name).version + 1):
        verdict = read_verdict(store, Chain.find(store, folder.app.name, number).head.folder)
        if verdict is not None:
            return next(finding for finding in verdict.findings if finding.check == "scores")
    raise AssertionError(after)


def test_the_first_version_after_a_restart_is_compared_on_samples_that_are_read_again(tmp_path: Path) -> None:
    folder = judged_folder(tmp_path)
    messages = messages_of(folder.app, 180, rows=16)
    held: list[Any] = []
    begin = RecentSamples.__init__

    def noted(recent: RecentSamples, *more: Any) -> None:
        held.append(recent)
        begin(recent, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecentSamples, "__init__", noted)
        write_messages(folder, messages[:220])
        before = run(folder).version
        # On a busy machine the last version may not be served yet, or rejected; shards have no other one afterwards.
        store, name = store_of(folder), folder.app.name
        known = History(store, name).read()
        PointerLog(store, name).move(lambda now: promote(now, known, before, accept=True), by="test")
        write_messages(folder, messages[220:])
        run(folder)
    scores = first_scores(folder, before)
    assert scores.is_checked, scores.said
    assert {"auc.click", "auc.bought", "active.auc.bought"} <= set(scores.values)
    # They have the labels that they have in the process that learned them.
    learned, read = (labels_of(recent.closed()) for recent in held)
    shared = learned.keys() & read.keys()
    assert len(shared) > 500
    assert all(read[key] == learned[key] for key in shared)


def labels_of(batches: Sequence[SampleBatch]) -> dict[tuple[int, str], int]:
    """The final labels of rows, by identity and label."""
    found: dict[tuple[int, str], int] = {}
    for batch in batches:
        identity = identity_of(batch, np.arange(len(batch))).tolist()
        for label in batch.labels:
            for row in np.flatnonzero(label.settles).tolist():
                found[identity[row], label.name] = int(label.value[row])
    return found


def version_of(number: int, watermark_s: int | None, samples: float) -> Known:
    watermark_ms = None if watermark_s is None else watermark_s * 1_000
    ref = VersionRef(version=number, run=1, sha256="0" * 64)
    return Known(ref=ref, kind="delta", watermark_ms=watermark_ms, metrics={"samples": samples})


def test_samples_are_read_again_from_a_version_whose_rows_have_closed_by_now() -> None:
    known = [version_of(1, None, 0.0), *(version_of(number, number * 10, number * 100.0) for number in range(2, 40))]
    # Rows of 100 s ago are closed, those of version 29; 500 rows before are of version 24.
    assert [old.version for old in begins_of(known, 390_000, [100_000], 500)] == list(range(24, 30))
    assert begins_of(known, 390_000, [100_000], 50_000)[0].version == 1
    assert begins_of(known, None, [100_000], 500) == []
    assert begins_of([], 390_000, [100_000], 500) == []
    # Too much for a week's window, not for that of a minute.
    many = [version_of(number, number * 10, number * 4e5) for number in range(2, 40)]
    assert begins_of(many, 390_000, [300_000, 60_000], 50_000)[0].version == 32
