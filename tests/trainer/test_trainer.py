"""The trainer: each label learned once, whatever happens between; and the same bytes where that is promised."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY

from streamlearn.apps import App
from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.errors import ShardUnreachable, TrainingFailed, UsageError, VersionDefect
from streamlearn.features import CountIn, Cross, Product
from streamlearn.models import DeepFm, Model
from streamlearn.trainer.intake.feed import Until
from streamlearn.trainer.intake.recent import RecentSamples
from streamlearn.trainer.learning_loop import LearnedStep
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.trainer import Trainer
from streamlearn.trainer.validation import ProgressiveValidation
from streamlearn.versions import Chain, Request, Requests, TimeSkip
from tests.trainer.runs import known_of, local_client, run, state_of, store_of
from tests.trainer.stream import STEP_MS, T_MS, learnable_app, learnable_folder, messages_of, outcomes, write_messages
from tests.trainer.toy import Toy

STRICT = {"order": "strict", "staleness_steps": 0, "step_rows": 64, "rate": 0.01}


def strict_folder(path: Path, app: App | None = None, **publisher: Any) -> Any:
    path.mkdir(exist_ok=True)
    settings = {"trainer": STRICT, "publisher": publisher or {"publish_interval_s": 3_600}}
    return learnable_folder(path, settings, app)


def rich_app() -> App:
    """Labels that follow each other, and columns of every kind that are made from others."""
    app = learnable_app()
    click, bought = app.labels
    derived = (
        Cross("user_id", "video_id", table="pairs", dim=4),
        Product("age", "length"),
        CountIn("video_id", "history"),
    )
    labels = (click, replace(bought, follows="click", loss_weight=2.0))
    return replace(app, labels=labels, features=replace(app.features, derived=derived))


def test_every_label_is_learned_once_and_corrected_once(tmp_path: Path) -> None:
    folder = learnable_folder(tmp_path, {"trainer": {"step_rows": 64}})
    messages = messages_of(folder.app, 20)
    write_messages(folder, messages)
    report = run(folder)
    expected = outcomes(messages)
    assert known_of(folder, messages) == expected
    assert report.tally.counts["read"] == sum(len(batch) for _, batch in messages)
    assert report.tally.counts["dropped"] > 0
    assert report.tally.refused_rows == 0
    manifest = Chain.find(store_of(folder), folder.app.name).manifest
    assert manifest.metrics["samples"] == report.tally.rows


def test_how_long_the_oldest_row_of_each_step_was_due_is_observed(tmp_path: Path) -> None:
    def figure(name: str) -> float:
        return REGISTRY.get_sample_value(f"streamlearn_trainer_freshness_seconds_{name}") or 0.0

    folder = learnable_folder(tmp_path, {"trainer": {"step_rows": 64}})
    messages = messages_of(folder.app, 20)
    write_messages(folder, messages)
    due_ms = [int(time_ms) for _, batch in messages for time_ms in batch.settle_time_ms]
    count, seconds, begin_ms = figure("count"), figure("sum"), SYSTEM_CLOCK.wall_ms()
    report = run(folder)
    end_ms, steps = SYSTEM_CLOCK.wall_ms(), figure("count") - count
    assert 0 < steps <= report.tally.steps
    mean_ms = (figure("sum") - seconds) / steps * 1_000
    assert begin_ms - max(due_ms) <= mean_ms <= end_ms - min(due_ms)


def test_it_learns(tmp_path: Path) -> None:
    settings = {"trainer": {"step_rows": 128, "rate": 0.01}, "tables": {"rate": 0.2}}
    folder = learnable_folder(tmp_path, settings)
    write_messages(folder, messages_of(folder.app, 60, 100))
    losses: list[float] = []

    def told(done: LearnedStep) -> None:
        assert done.learned is not None
        losses.append(done.learned.loss / len(done.step))

    run(folder, on_step=told)
    assert np.mean(losses[-8:]) < 0.85 * np.mean(losses[:8])


@pytest.mark.parametrize("is_rich", [False, True])
def test_strict_order_gives_the_same_bytes_however_often_it_is_stopped(is_rich: bool, tmp_path: Path) -> None:
    app = rich_app() if is_rich else None

    def model() -> Model | None:
        return DeepFm(hidden=(8, 4), dropout=0.3, norm="layer") if is_rich else None

    whole = strict_folder(tmp_path / "whole", app)
    messages = messages_of(whole.app, 24)
    write_messages(whole, messages)
    run(whole, model=model())

    pieces = strict_folder(tmp_path / "pieces", app, publish_interval_s=0.001)
    write_messages(pieces, messages)
    runs = 0
    for steps in (3, 1, 4, 2, 1_000):
        stop, left = threading.Event(), [steps]

        def told(_: LearnedStep, stop: threading.Event = stop, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                stop.set()

        runs = run(pieces, stop=stop, on_step=told, model=model()).run
    assert runs == 5
    assert known_of(pieces, messages) == outcomes(messages)
    assert state_of(pieces) == state_of(whole)


@pytest.mark.parametrize("is_shuffled", [False, True])
def test_a_first_version_has_learned_the_history_several_times_and_training_continues_exactly_once(
    tmp_path: Path, is_shuffled: bool
) -> None:
    folder = strict_folder(tmp_path)
    messages = messages_of(folder.app, 24)
    write_messages(folder, messages)
    until_ms = T_MS + 12 * STEP_MS
    chains: list[Chain] = []

    def told(_: LearnedStep) -> None:
        chains.append(Chain.find(store_of(folder), folder.app.name))

    report = run(folder, passes=3, is_shuffled=is_shuffled, history_ms=until_ms, on_step=told)
    assert {chain.version for chain in chains} == {1}
    manifest = chains[0].manifest
    # Version 1 has learned whole messages of earlier impressions, each label once.
    read = {entry.partition: entry.offset for entry in manifest.positions}
    history, counts = [], [0, 0]
    for partition, batch in messages:
        if counts[partition] < read[partition]:
            history.append((partition, batch))
        counts[partition] += 1
    assert 8 < len(history) < len(messages)
    assert all((batch.shown_ms(np.arange(len(batch))) < until_ms).all() for _, batch in history)
    assert known_of(folder, history, version=1) == outcomes(history)
    assert known_of(folder, messages) == outcomes(messages)
    steps = Chain.find(store_of(folder), folder.app.name).manifest.metrics["steps"]
    assert steps - manifest.metrics["steps"] == report.tally.steps
    assert manifest.metrics["steps"] > 2 * manifest.metrics["samples"] / 64
    # With versions, passes do nothing.
    assert run(folder, passes=3).tally.rows == 0
    # The first of several passes is what training by itself does.
    plain = strict_folder(tmp_path / "plain")
    write_messages(plain, history)
    run(plain)
    once = strict_folder(tmp_path / "once")
    write_messages(once, history)
    run(once, passes=2)
    assert (
        Chain.find(store_of(once), "learnable").manifest.metrics["samples"]
        == Chain.find(store_of(plain), "learnable").manifest.metrics["samples"]
    )
    assert state_of(once) != state_of(plain)


def test_passes_start_over_after_a_failure_and_stop_at_the_end_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = messages_of(strict_folder(tmp_path).app, 16)
    whole, broken = strict_folder(tmp_path / "whole"), strict_folder(tmp_path / "broken")
    for folder in (whole, broken):
        write_messages(folder, messages)
    run(whole, passes=2)
    push, left = Rows.push, [9]

    def pushed(*args: Any) -> int:
        left[0] -= 1
        if not left[0]:
            message = "a shard does not answer"
            raise ShardUnreachable(message, help="")
        return push(*args)

    monkeypatch.setattr(Rows, "push", pushed)
    assert run(broken, passes=2).recoveries == 1
    assert state_of(broken) == state_of(whole)
    short = strict_folder(tmp_path / "short")
    write_messages(short, messages)
    with short.open_topic("samples") as topic, local_client(short) as client:
        trainer = Trainer(short, Toy(), topic, client, store_of(short), passes=2)
        trainer.run(threading.Event(), until=Until({0: 3, 1: 2}))
    manifest = Chain.find(store_of(short), short.app.name).manifest
    assert {entry.partition: entry.offset for entry in manifest.positions} == {0: 3, 1: 2}


def test_passes_that_are_stopped_leave_no_version_and_need_samples(tmp_path: Path) -> None:
    folder = strict_folder(tmp_path)
    write_messages(folder, messages_of(folder.app, 8))
    stop = threading.Event()
    stop.set()
    with pytest.raises(TrainingFailed, match="stopped in pass 1 of 2, before the first version"):
        run(folder, stop=stop, passes=2)
    with pytest.raises(UsageError, match="the first version would have nothing to learn"):
        run(folder, passes=2, history_ms=T_MS + 1)
    run(folder, passes=2)
    assert Chain.find(store_of(folder), folder.app.name).version >= 1


def test_what_was_not_published_is_learned_again_as_it_was(tmp_path: Path) -> None:
    whole = strict_folder(tmp_path / "whole")
    messages = messages_of(whole.app, 16)
    write_messages(whole, messages)
    run(whole)

    class Stopped(Exception):
        pass

    broken, left = strict_folder(tmp_path / "broken", publish_interval_s=0.05), [5]
    write_messages(broken, messages)

    def told(_: LearnedStep) -> None:
        left[0] -= 1
        if not left[0]:
            raise Stopped

    with pytest.raises(Stopped):
        run(broken, on_step=told)
    run(broken)
    assert known_of(broken, messages) == outcomes(messages)
    assert state_of(broken) == state_of(whole)


def test_a_model_keeps_the_weight_decay_it_began_with(tmp_path: Path) -> None:
    write_messages(strict_folder(tmp_path), messages_of(strict_folder(tmp_path).app, 4))
    run(strict_folder(tmp_path))
    changed = learnable_folder(tmp_path, {"trainer": STRICT, "tables": {"weight_decay": 0.1}})
    with pytest.raises(UsageError, match="give the application a new name"):
        run(changed)


def test_staleness_changes_what_is_learned_and_not_which_labels(tmp_path: Path) -> None:
    folder = learnable_folder(tmp_path, {"trainer": {"step_rows": 32, "staleness_steps": 3, "queue_steps_max": 4}})
    messages = messages_of(folder.app, 20)
    write_messages(folder, messages)
    run(folder)
    assert known_of(folder, messages) == outcomes(messages)


def test_a_request_puts_training_back_and_what_is_skipped_is_never_learned(tmp_path: Path) -> None:
    folder = strict_folder(tmp_path, publish_interval_s=0.001)
    messages = messages_of(folder.app, 24)
    store, name = store_of(folder), folder.app.name
    write_messages(folder, messages[:8])
    run(folder)
    first = Chain.find(store, name)
    write_messages(folder, messages[8:])
    run(folder)
    skip = TimeSkip(begin_ms=T_MS + 10 * STEP_MS, end_ms=T_MS + 12 * STEP_MS)
    Requests(store, name, clock=SYSTEM_CLOCK).ask(Request(to=first.ref, skips=(skip,), reason="a test"))
    report = run(folder)
    assert report.rewinds == 1
    assert report.tally.counts["skipped"] > 0
    newest = Chain.find(store, name).manifest
    assert newest.skips == (skip,)

    clean = strict_folder(tmp_path / "clean")
    kept = [(partition, batch) for partition, batch in messages]
    write_messages(clean, kept)
    skipped = {
        (int(batch.requests.partition[request]), int(batch.requests.offset[request]))
        for _, batch in messages
        for request in np.flatnonzero(
            (batch.requests.event_time_ms >= skip.begin_ms) & (batch.requests.event_time_ms < skip.end_ms)
        )
    }
    known = known_of(folder, messages)
    expected = {key: value for key, value in outcomes(messages).items() if key[:2] not in skipped}
    assert {key: value for key, value in known.items() if key[:2] not in skipped} == expected


def test_a_request_to_go_back_to_a_damaged_version_stops_nothing_and_the_next_one_is_obeyed(tmp_path: Path) -> None:
    folder = strict_folder(tmp_path, publish_interval_s=0.001)
    messages = messages_of(folder.app, 24)
    store, name, found = store_of(folder), folder.app.name, list[Chain]()
    for begin in (0, 4, 8):
        write_messages(folder, messages[begin : begin + 4])
        run(folder)
        found.append(Chain.find(store, name))
    (good, bad, _), requests = found, Requests(store, name, clock=SYSTEM_CLOCK)
    # Later versions do not need these: of them they have their own.
    (weights,) = [one for one in bad.manifest.files if one.kind == "dense"]
    damage(tmp_path / "store" / bad.head.folder / weights.path)
    requests.ask(Request(to=bad.ref, by="ops"))
    write_messages(folder, messages[12:])
    refused = REGISTRY.get_sample_value("streamlearn_trainer_requests_refused_total") or 0.0
    report = run(folder)
    assert (report.rewinds, Chain.find(store, name).manifest.metrics["requests_obeyed"]) == (0, 1)
    assert REGISTRY.get_sample_value("streamlearn_trainer_requests_refused_total") == refused + 1
    assert known_of(folder, messages) == outcomes(messages)
    refusal = requests.refused_last()
    assert refusal is not None
    assert weights.path in refusal.reason
    requests.ask(Request(to=good.ref, by="ops"))
    assert run(folder).rewinds == 1
    assert requests.refused_last() is None


@pytest.mark.parametrize("at", [1, 2])
def test_without_the_manifests_of_a_damaged_version_and_of_later_ones_training_goes_on_from_the_one_before(
    at: int, tmp_path: Path
) -> None:
    folder = strict_folder(tmp_path)
    messages = messages_of(folder.app, 16)
    store, found = store_of(folder), list[Chain]()
    for begin in (0, 4, 8):
        write_messages(folder, messages[begin : begin + 4])
        run(folder)
        found.append(Chain.find(store, folder.app.name))
    rows = next(one for one in found[at].manifest.files if one.kind == "rows")
    damage(tmp_path / "store" / found[at].head.folder / rows.path)
    write_messages(folder, messages[12:])
    with pytest.raises(VersionDefect, match=re.escape(rows.path)):
        run(folder)
    for chain in found[at:]:
        (tmp_path / "store" / chain.head.folder / "manifest.json").unlink()
    run(folder)
    assert known_of(folder, messages) == outcomes(messages)
    newest = Chain.find(store, folder.app.name)
    assert newest.manifest.parent == found[at - 1].ref
    assert newest.version > found[-1].version, "a number is never used twice"


def damage(file: Path) -> None:
    """Flip a bit in the midst of a file."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.chmod(0o600)
    file.write_bytes(data)


def test_versions_are_not_judged_by_what_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[RecentSamples] = []

    class NotedSamples(RecentSamples):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    def judged_by() -> list[int]:
        """Event times of the impressions that versions are judged by, of those that are skipped in the end."""
        times = [int(ms) for batch in made[0].closed() for ms in batch.requests.event_time_ms[batch.request_index]]
        return [ms for ms in times if skip.begin_ms <= ms < skip.end_ms]

    monkeypatch.setattr("streamlearn.trainer.trainer.RecentSamples", NotedSamples)
    folder = strict_folder(tmp_path, publish_interval_s=0.001)
    write_messages(folder, messages_of(folder.app, 240, 10))
    skip = TimeSkip(begin_ms=T_MS + 10 * STEP_MS, end_ms=T_MS + 12 * STEP_MS)
    asked: list[int] = []

    def told(_: LearnedStep) -> None:
        if not asked and (before := judged_by()):
            asked.extend(before)
            store, name = store_of(folder), folder.app.name
            Requests(store, name, clock=SYSTEM_CLOCK).ask(Request(to=Chain.find(store, name).ref, skips=(skip,)))

    assert run(folder, on_step=told).rewinds == 1
    assert asked
    assert judged_by() == []


def test_a_step_whose_gradients_are_no_numbers_is_left_out_and_kept(tmp_path: Path) -> None:
    from dataclasses import replace

    folder = strict_folder(tmp_path)
    messages = messages_of(folder.app, 12)
    partition, bad = messages[6]
    dense = {name: np.full_like(values, np.nan) for name, values in bad.item.dense.items()}
    messages[6] = (partition, replace(bad, item=replace(bad.item, dense=dense)))
    write_messages(folder, messages)
    report = run(folder)
    assert 1 <= report.tally.refused_steps <= 3
    assert report.tally.refused_rows >= len(bad)
    assert list((tmp_path / ".streamlearn" / "kept").glob("step-*.avro"))
    state = state_of(folder)
    for name, data in state.items():
        if name.startswith("dense.") or name.endswith(".rows"):
            assert np.isfinite(np.frombuffer(data, np.float32)).all(), name
    # They are known, and not learned when they come again.
    assert run(folder).tally.rows == 0


def test_windows_are_told_of_every_row_whose_labels_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    refused: list[tuple[int, int]] = []

    def refuse(self: ProgressiveValidation, event_time_ms: Any, labels: Any) -> None:
        refused.extend(zip(event_time_ms.tolist(), labels.tolist(), strict=True))

    monkeypatch.setattr(ProgressiveValidation, "refuse", refuse)
    folder = learnable_folder(tmp_path, {"trainer": STRICT | {"restart_slack_s": 0}})
    messages = messages_of(folder.app, 160, 10)
    # What no number is comes first, and the first message again, of another place, when its windows are long closed.
    partition, first = messages[0]
    lengths = np.full_like(first.item.dense["length"], np.nan)
    item = replace(first.item, dense=dict(first.item.dense) | {"length": lengths})
    late = replace(first.requests, offset=first.requests.offset + 50)
    again = replace(first, requests=late, header=messages[-1][1].header)
    write_messages(folder, [(partition, replace(first, item=item)), *messages[1:], (partition, again)])
    report = run(folder)
    assert report.tally.counts["old"] == len(first)
    assert report.tally.refused_rows >= len(first)
    assert len(refused) == report.tally.counts["old"] + report.tally.refused_rows
    shown_ms = first.requests.event_time_ms[first.request_index].tolist()
    assert refused[-len(first) :] == [(ms, 3) for ms in shown_ms]


def test_too_many_such_steps_end_the_run(tmp_path: Path) -> None:
    from dataclasses import replace

    folder = learnable_folder(tmp_path, {"trainer": STRICT | {"refused_steps_max": 2}})
    bad = []
    for partition, batch in messages_of(folder.app, 12):
        dense = {name: np.full_like(values, np.inf) for name, values in batch.item.dense.items()}
        bad.append((partition, replace(batch, item=replace(batch.item, dense=dense))))
    write_messages(folder, bad)
    with pytest.raises(TrainingFailed, match="3 steps in a row"):
        run(folder)
