"""A run that goes on by itself after something failed: the same bytes, the same labels, and all of it said."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pytest

from streamlearn.apps import App, AppFolder
from streamlearn.errors import FileMissing, RunOver, ShardUnreachable
from streamlearn.ps import PsClient
from streamlearn.samples import SampleBatch
from streamlearn.settings import ValidationSettings
from streamlearn.testing import wait_until
from streamlearn.trainer import validation_thread
from streamlearn.trainer.columns import columns_of
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.learner import Learned
from streamlearn.trainer.learning_loop import LearnedStep
from streamlearn.trainer.step import Piece, Step
from streamlearn.trainer.trainer import Trainer, TrainReport
from streamlearn.trainer.validation import ProgressiveValidation
from streamlearn.trainer.validation_thread import ValidationThread
from streamlearn.versions import Chain
from tests.trainer.failing import Failing
from tests.trainer.runs import known_of, local_client, run, state_of, store_of, until_end
from tests.trainer.stream import T_MS, learnable_app, learnable_folder, messages_of, outcomes, write_messages
from tests.trainer.toy import Toy

STRICT = {"order": "strict", "step_rows": 64, "rate": 0.01}
# Keys leave that come no more for four messages.
LEAVING = {"idle_s": 4.0, "tick_ms": 1_000, "expire_steps": 3, "expire_keys": 100_000}


def folder_of(path: Path, tables: dict[str, Any] | None = None, *, publish_interval_s: float = 3_600) -> AppFolder:
    path.mkdir()
    settings = {"trainer": STRICT, "publisher": {"publish_interval_s": publish_interval_s}, "tables": tables or {}}
    return learnable_folder(path, settings)


def written(folder: AppFolder, count: int = 20) -> Any:
    messages = messages_of(folder.app, count)
    write_messages(folder, messages)
    return messages


def test_a_run_recovers_by_itself_and_learns_the_same_bytes(tmp_path: Path) -> None:
    whole = folder_of(tmp_path / "whole")
    messages = written(whole)
    run(whole)
    broken = folder_of(tmp_path / "broken", publish_interval_s=0.001)
    written(broken)
    report = run(broken, on_step=Failing(2, 3, 7, 12))
    assert (report.run, report.recoveries) == (1, 4)
    assert known_of(broken, messages) == outcomes(messages)
    assert state_of(broken) == state_of(whole)
    manifest = Chain.find(store_of(broken), broken.app.name).manifest
    assert manifest.metrics["samples"] == Chain.find(store_of(whole), whole.app.name).manifest.metrics["samples"]


def test_the_judge_holds_each_learned_label_once_with_its_value_after_recoveries(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "broken", publish_interval_s=0.001)
    messages = written(folder, 80)
    with folder.open_topic("samples") as topic, local_client(folder) as client:
        trainer = Trainer(folder, Toy(), topic, client, store_of(folder), on_step=Failing(20, 31))
        assert trainer.run(threading.Event(), until=until_end(topic)).recoveries == 2
        closed = trainer._recent.closed()
    held = [
        (
            (int(batch.requests.partition[of]), int(batch.requests.offset[of]), int(batch.item_index[row]), label.name),
            value,
        )
        for batch in closed
        for row, of in enumerate(batch.request_index.tolist())
        for label in batch.labels
        for settles, value in [(label.settles[row], int(label.value[row]))]
        if settles
    ]
    said = outcomes(messages)
    assert len(held) == len(dict(held)) > 500
    assert dict(held) == {name: said[name] for name in dict(held)}


def test_what_was_read_is_counted_through_recoveries(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "folder")
    messages = written(folder)
    report = run(folder, on_step=Failing(9))
    rows = sum(len(batch) for _, batch in messages)
    # From the first version on all of it was read again; what came before the failure was read too.
    assert report.recoveries == 1
    assert report.tally.counts["read"] >= rows + 9 * 64
    assert report.tally.rows >= rows // 2 + 9 * 64


def test_keys_leave_at_the_same_steps_whatever_is_learned_again(tmp_path: Path) -> None:
    staying = folder_of(tmp_path / "staying")
    whole = folder_of(tmp_path / "whole", LEAVING)
    broken = folder_of(tmp_path / "broken", LEAVING)
    for folder in (staying, whole, broken):
        messages = written(folder)
    run(staying)
    run(whole)
    # All is learned again from the beginning, the looks at keys among it.
    report = run(broken, on_step=Failing(7, 11))
    assert report.recoveries == 2
    state = state_of(whole)
    assert len(state["main.keys"]) < 0.8 * len(state_of(staying)["main.keys"])
    assert known_of(broken, messages) == outcomes(messages)
    assert state_of(broken) == state


def test_nothing_is_pulled_ahead_of_keys_that_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path / "folder", LEAVING | {"expire_steps": 5})
    written(folder)
    packed, ahead = [0], list[int]()
    pack_flat, expire = PsClient.pack_flat, PsClient.expire

    def packing(self: PsClient, *args: Any) -> None:
        packed[0] += 1
        pack_flat(self, *args)

    def expiring(self: PsClient, *args: Any, **named: Any) -> Any:
        begun, until_s = packed[0], time.monotonic() + 0.2
        while packed[0] == begun and time.monotonic() < until_s:
            pass
        ahead.append(packed[0] - begun)
        return expire(self, *args, **named)

    monkeypatch.setattr(PsClient, "pack_flat", packing)
    monkeypatch.setattr(PsClient, "expire", expiring)
    run(folder)
    assert len(ahead) >= 2
    assert set(ahead) == {0}


def test_strict_order_pulls_nothing_ahead_whatever_staleness_is_set(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    folder = learnable_folder(path, {"trainer": STRICT | {"staleness_steps": 5, "queue_steps_max": 8}})
    whole = folder_of(tmp_path / "whole")
    for one in (folder, whole):
        written(one)
        run(one)
    assert state_of(folder) == state_of(whole)


def test_a_run_whose_versions_are_gone_ends_and_does_not_begin_anew(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "app")
    written(folder)
    failing = Failing(3)

    def told(done: LearnedStep) -> None:
        if done.step.number == 3:
            for kind in ("deltas", "bases"):
                rmtree(folder.folder / "store" / folder.app.name / kind, ignore_errors=True)
        failing(done)

    with pytest.raises(FileMissing, match="version 1 of 'learnable' was in the store, but now it is empty"):
        run(folder, on_step=told)
    assert failing.learned == 3


def test_a_second_run_ends_the_first(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "folder", publish_interval_s=0.001)
    messages = written(folder)
    second: list[TrainReport] = []

    def told(_: LearnedStep) -> None:
        if not second:
            second.append(run(folder))

    with pytest.raises(RunOver):
        run(folder, on_step=told)
    assert second[0].run == 2
    # What the second one said stands, and nothing was added to it.
    assert Chain.find(store_of(folder), folder.app.name).manifest.run == 2
    assert known_of(folder, messages) == outcomes(messages)


def test_recoveries_are_counted_from_the_newest_version_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamlearn.trainer.trainer._RECOVERIES_MAX", 1)
    folder = folder_of(tmp_path / "folder", publish_interval_s=0.001)
    messages = written(folder, 200)
    failed_at: list[int] = []

    def told(_: LearnedStep) -> None:
        if len(failed_at) == 2:
            return
        version = Chain.find(store_of(folder), folder.app.name).version
        if version not in failed_at:
            failed_at.append(version)
            message = f"no shard answers after version {version}"
            raise ShardUnreachable(message, help="a test")

    def show(trainer: Trainer) -> None:
        if len(failed_at) < 2:
            trainer.publisher.settle()  # no step comes before the version that is under way

    assert run(folder, on_step=told, show=show).recoveries == 2
    assert known_of(folder, messages) == outcomes(messages)


def test_a_run_that_comes_no_further_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamlearn.trainer.trainer._RECOVERIES_MAX", 2)
    folder = folder_of(tmp_path / "folder")
    written(folder)
    failing = Failing(*range(1, 100))
    with pytest.raises(ShardUnreachable, match="at step 3"):
        run(folder, on_step=failing)


@pytest.mark.parametrize("other", [None, KeyError("other")], ids=["alone", "beside another"])
def test_what_goes_wrong_with_the_last_scores_is_said(other: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Exception):
        pass

    def close(self: ProgressiveValidation, watermark_ms: int) -> None:
        raise Broken

    monkeypatch.setattr(ProgressiveValidation, "close", close)
    app = learnable_app()
    batch = messages_of(app, 1)[0][1]
    bits = np.full(len(batch), 3, np.uint32)
    step = Step(
        1, (Piece(batch, np.arange(len(batch)), bits, 0 * bits),), Reached((1,), (T_MS,), T_MS, (T_MS,)), len(batch)
    )
    learned = Learned(np.zeros((len(batch), 2), np.float32), 1.0, (), True)
    with pytest.raises(Broken if other is None else KeyError):
        _validated(app, step, learned, other)


def _validated(app: App, step: Step, learned: Learned, error: Exception | None) -> None:
    with ValidationThread(app, ValidationSettings(), on_scores=lambda scores: None, learned_before_ms=None) as thread:
        thread.add(columns_of(step), learned)
        if error is not None:
            raise error


def test_who_catches_up_has_the_summary_of_windows_that_close_at_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    app, is_closed, has_caught_up = learnable_app(), threading.Event(), threading.Event()
    close = ProgressiveValidation.close

    def slow(self: ProgressiveValidation, watermark_ms: int) -> Any:
        scores = close(self, watermark_ms)
        if scores:
            is_closed.set()
            has_caught_up.wait(1.0)
        return scores

    monkeypatch.setattr(ProgressiveValidation, "close", slow)
    batch = messages_of(app, 1)[0][1]
    bits, late_ms = np.full(len(batch), 3, np.uint32), T_MS + 86_400_000
    pieces = (Piece(batch, np.arange(len(batch)), bits, 0 * bits),)
    step = Step(1, pieces, Reached((1,), (late_ms,), late_ms, (late_ms,)), len(batch))
    with ValidationThread(app, ValidationSettings(), on_scores=lambda scores: None, learned_before_ms=None) as thread:
        thread.add(columns_of(step), Learned(np.zeros((len(batch), 2), np.float32), 1.0, (), True))
        assert is_closed.wait(60)
        thread.catch_up()
        summary = thread.summary
        has_caught_up.set()
    assert "validation.click.auc" in summary
    assert summary == thread.summary


def _has(scored: queue.SimpleQueue[Any], count: int) -> bool:
    return scored.qsize() == count


def test_while_windows_close_fast_they_are_summed_up_now_and_then_and_when_somebody_catches_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, scored, sums = learnable_app(), queue.SimpleQueue[Any](), list[int]()

    def summary(self: ProgressiveValidation) -> dict[str, float]:
        sums.append(scored.qsize())
        return {"windows": float(sums[-1])}

    monkeypatch.setattr(validation_thread, "_SUMMARY_REST", 1e12)
    monkeypatch.setattr(validation_thread, "_LOOK_S", 0.001)
    monkeypatch.setattr(ProgressiveValidation, "close", lambda self, watermark_ms: [watermark_ms])
    monkeypatch.setattr(ProgressiveValidation, "summary", summary)
    batch = messages_of(app, 1)[0][1]
    pieces = (Piece(batch, np.arange(len(batch)), np.full(len(batch), 3, np.uint32), np.zeros(len(batch), np.uint32)),)
    learned = Learned(np.zeros((len(batch), 2), np.float32), 1.0, (), True)
    with ValidationThread(app, ValidationSettings(), on_scores=scored.put, learned_before_ms=None) as thread:
        for number in range(1, 6):
            late_ms = T_MS + number
            thread.add(
                columns_of(Step(number, pieces, Reached((1,), (late_ms,), late_ms, (late_ms,)), len(batch))), learned
            )
            wait_until(partial(_has, scored, number), "a window to close", 60)
            wait_until(lambda: thread.summary == {"windows": 1.0}, "the first one to be summed up", 60)
        assert len(sums) == 2
        thread.catch_up()
        assert thread.summary["windows"] >= 5.0
        assert len(sums) == 3
    assert len(sums) == 3


def test_what_is_no_number_stays_refused_however_soon_training_ends(tmp_path: Path) -> None:
    def bad(path: Path, interval_s: float) -> tuple[AppFolder, list[tuple[int, SampleBatch]]]:
        folder = folder_of(path, publish_interval_s=interval_s)
        messages = messages_of(folder.app, 12)
        partition, batch = messages[3]
        lengths = batch.item.dense["length"].copy()
        lengths[:5] = np.nan
        item = replace(batch.item, dense=dict(batch.item.dense) | {"length": lengths})
        messages[3] = (partition, replace(batch, item=item))
        write_messages(folder, messages)
        return folder, messages

    whole, messages = bad(tmp_path / "whole", 3_600)
    assert run(whole).tally.refused_steps == 1
    stopped, _ = bad(tmp_path / "stopped", 0.001)
    while True:
        stop = threading.Event()
        run(stopped, stop=stop, on_step=lambda _, stop=stop: stop.set())
        if not stop.is_set():
            break
    assert known_of(stopped, messages) == known_of(whole, messages)
    assert state_of(stopped) == state_of(whole)
