"""Evaluation: what a pass learns is what the trainer learns; what is held out is not; and nothing live is touched."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from streamlearn.apps import AppFolder
from streamlearn.cli.main import cli
from streamlearn.errors import StreamlearnError, TopicMissing, UsageError
from streamlearn.ps import Epoch, PsClient
from streamlearn.samples import SampleBatch
from streamlearn.trainer.evaluation import Evaluation, Pass
from streamlearn.trainer.intake.extract import rows_of
from streamlearn.trainer.intake.split import Split, SplitRequest, split_of
from streamlearn.trainer.trainer_setup import ends_of
from tests.trainer.processes import write_app
from tests.trainer.runs import local_client, run, state_of
from tests.trainer.stream import STEP_MS, T_MS, learnable_folder, messages_of, outcomes, write_messages
from tests.trainer.toy import Toy

Messages = list[tuple[int, SampleBatch]]
_MESSAGES, _LATER_MS = 24, 3_600_000
_TRAINER = {"order": "strict", "step_rows": 64, "rate": 0.01}


def folder_of(path: Path, messages: Messages, **sections: Mapping[str, Any]) -> AppFolder:
    path.mkdir(exist_ok=True)
    settings = {"trainer": _TRAINER, "publisher": {"publish_interval_s": 3_600}, **sections}
    folder = learnable_folder(path, settings)
    write_messages(folder, messages)
    return folder


def complete(messages: Messages, later_ms: int = _LATER_MS) -> Messages:
    """With messages without rows at the end, by which every lot is far enough for all labels to be final."""
    _, batch = messages[0]
    none = shown_within(batch, 0, 0)
    later = [
        replace(none, header=replace(batch.header, watermark_ms=T_MS + later_ms, lot=lot, lots_count=4))
        for lot in range(4)
    ]
    return messages + [(lot % 2, one) for lot, one in enumerate(later)]


def shown_within(batch: SampleBatch, begin_ms: int, end_ms: int) -> SampleBatch:
    shown_ms = batch.requests.event_time_ms[batch.request_index]
    return rows_of(batch, np.flatnonzero((shown_ms >= begin_ms) & (shown_ms < end_ms)))


@contextmanager
def evaluation_of(
    folder: AppFolder, asked: SplitRequest, *, is_shuffled: bool = False
) -> Iterator[tuple[Evaluation, Split, PsClient]]:
    """An evaluation in this process, on tables of its own."""
    with folder.open_topic("samples") as topic, local_client(folder) as client:
        client.restore(Epoch(1), None)
        split = split_of(folder, topic, asked, ends_of(topic, "end"), keep_aside=lambda name, data: None)
        yield Evaluation(folder, Toy(), topic, client, split, is_shuffled=is_shuffled), split, client


class Made:
    """An evaluation's passes, and after each of them what it had learned and how many keys had a row."""

    def __init__(self, folder: AppFolder, asked: SplitRequest, passes: int = 1, *, is_shuffled: bool = False) -> None:
        self.passes: list[Pass] = []
        self.dense: list[dict[str, bytes]] = []
        self.keys: list[dict[str, int]] = []
        with evaluation_of(folder, asked, is_shuffled=is_shuffled) as (evaluation, split, client):
            self.split = split
            for one in evaluation.passes(passes, threading.Event()):
                self.passes.append(one)
                learner = evaluation.learner
                learned = {f"dense.{name}": values.tobytes() for name, values in learner.dense().items()}
                state = {f"dense_optimizer.{name}": one.tobytes() for name, one in learner.optimizer_state().items()}
                self.dense.append(learned | state)
                self.keys.append({name: table.keys for name, table in client.stats()[0].tables.items()})


def dense_of(folder: AppFolder) -> dict[str, bytes]:
    """What the trainer's newest version says of dense weights and their optimizer."""
    return {name: data for name, data in state_of(folder).items() if name.startswith("dense")}


@pytest.fixture(scope="module")
def messages() -> Messages:
    return complete(messages_of(learnable_folder(Path()).app, _MESSAGES))


def test_one_pass_learns_what_the_trainer_does_to_the_byte(tmp_path: Path, messages: Messages) -> None:
    folder = folder_of(tmp_path, messages)
    made = Made(folder, SplitRequest(hold_out=0.0))
    report = run(folder)
    assert made.dense[0] == dense_of(folder)
    tally = made.passes[0].tally
    assert (tally.rows, tally.steps, tally.keys, tally.loss) == (
        report.tally.rows, report.tally.steps, report.tally.keys, report.tally.loss,
    )  # fmt: skip
    assert tally.counts == report.tally.counts
    assert made.passes[0].held_out.scores == ()


def test_what_is_held_out_is_never_learned(tmp_path: Path, messages: Messages) -> None:
    test_ms = T_MS + 17 * STEP_MS + 300
    made = Made(folder_of(tmp_path / "all", messages), SplitRequest(test_ms=test_ms), passes=3)
    # The trainer on what is left when the rows that are held out are taken out of the topic.
    rest = [(partition, shown_within(batch, 0, test_ms)) for partition, batch in messages]
    plain = folder_of(tmp_path / "rest", rest)
    run(plain)
    assert made.dense[0] == dense_of(plain)
    rows = sum(len(batch) for _, batch in rest)
    for one in made.passes:
        assert one.tally.counts["read"] - one.tally.counts["skipped"] == rows
    # Nor does it matter for the passes that follow what was held out.
    assert Made(plain, SplitRequest(hold_out=0.0), passes=3).dense == made.dense


def test_passes_lower_the_loss_of_training_and_each_gives_every_label_again(tmp_path: Path, messages: Messages) -> None:
    made = Made(folder_of(tmp_path, messages, tables={"rate": 0.2}), SplitRequest(), passes=3)
    losses = [one.loss for one in made.passes]
    assert losses[1] < 0.95 * losses[0]
    assert losses[2] < losses[1]
    assert [one.number for one in made.passes] == [1, 2, 3]
    first = made.passes[0].tally
    for one in made.passes:
        assert (one.tally.rows, one.tally.steps, one.tally.counts) == (first.rows, first.steps, first.counts)


def test_two_evaluations_say_the_same_to_the_last_digit(tmp_path: Path, messages: Messages) -> None:
    one, other = (Made(folder_of(tmp_path / name, messages), SplitRequest(), passes=2) for name in ("one", "other"))
    assert one.dense == other.dense
    assert [each.held_out for each in one.passes] == [each.held_out for each in other.passes]
    assert one.dense[0] != one.dense[1]


def test_scores_are_of_the_rows_held_out_once_each_with_their_last_label(tmp_path: Path, messages: Messages) -> None:
    test_ms = T_MS + 16 * STEP_MS
    folder = folder_of(tmp_path, messages)
    held_out = Made(folder, SplitRequest(test_ms=test_ms)).passes[0].held_out
    held = [(partition, shown_within(batch, test_ms, 1 << 60)) for partition, batch in messages]
    expected = outcomes(held)
    assert held_out.open_rows == {"click": 0, "bought": 0}
    for label, rate in (("click", 0.5), ("bought", 1.0)):
        known = [value for key, value in expected.items() if key[3] == label]
        whole, *others = [score for score in held_out.scores if score.label == label]
        assert (whole.segment, whole.rows, whole.positives) == ("", len(known), sum(known))
        assert whole.weight == pytest.approx(sum(known) + (len(known) - sum(known)) / rate)
        assert whole.is_complete
        assert (whole.begin_ms, whole.end_ms) == (test_ms, T_MS + _MESSAGES * STEP_MS)
        assert {score.segment for score in others} == {"page"}
        assert sum(score.rows for score in others) == whole.rows


def test_what_was_learned_tells_held_out_rows_apart(tmp_path: Path) -> None:
    many = complete(messages_of(learnable_folder(Path()).app, 60, 100))
    made = Made(folder_of(tmp_path, many, tables={"rate": 0.2}), SplitRequest(hold_out=0.2), passes=2)
    for one in made.passes:
        whole = next(score for score in one.held_out.scores if score.label == "click")
        assert whole.auc is not None
        assert whole.auc > 0.6


def test_labels_that_may_still_become_positive_are_counted_and_not_scored(tmp_path: Path, messages: Messages) -> None:
    # Samples are complete up to 62 s after the first: clicks of the first 2 s are final, and no purchase is.
    of_62 = [(at, replace(one, header=replace(one.header, watermark_ms=T_MS + 62_000))) for at, one in messages]
    test_ms, final_ms = T_MS + STEP_MS, T_MS + 2 * STEP_MS
    held_out = Made(folder_of(tmp_path, of_62), SplitRequest(test_ms=test_ms)).passes[0].held_out
    final, rest = (
        outcomes([(partition, shown_within(batch, begin, end)) for partition, batch in messages])
        for begin, end in ((test_ms, final_ms), (final_ms, 1 << 60))
    )
    assert {score.label for score in held_out.scores} == {"click"}
    assert held_out.scores[0].rows == sum(key[3] == "click" for key in final)
    assert held_out.scores[0].is_complete
    # Of what is open all are counted that were first told of; those told of by a correction alone are in no window.
    assert held_out.open_rows["click"] == sum(key[3] == "click" for key in rest)
    assert held_out.open_rows["bought"] == sum(key[3] == "bought" for key in (*final, *rest))


def test_a_share_is_of_the_rows_and_by_when_they_were_shown(tmp_path: Path, messages: Messages) -> None:
    folder = folder_of(tmp_path, messages)
    times = np.concatenate([one.requests.event_time_ms[one.request_index] for _, one in messages])
    for share in (0.1, 0.5, 0.9):
        split = Made(folder, SplitRequest(hold_out=share), passes=0).split
        assert share <= np.mean(times >= split.test_ms) < share + 0.06
        assert split.begin_ms <= times.min() < split.test_ms <= times.max() < split.end_ms
    assert Made(folder, SplitRequest(), passes=0).split == Made(folder, SplitRequest(hold_out=0.1), passes=0).split


def test_rows_before_and_after_the_times_given_are_neither_learned_nor_scored(
    tmp_path: Path, messages: Messages
) -> None:
    asked = SplitRequest(begin_ms=T_MS + 5_000, test_ms=T_MS + 12_000, end_ms=T_MS + 15_000)
    made = Made(folder_of(tmp_path / "all", messages), asked)
    learned = [(at, shown_within(batch, T_MS + 5_000, T_MS + 12_000)) for at, batch in messages]
    plain = folder_of(tmp_path / "some", learned)
    run(plain)
    assert made.dense[0] == dense_of(plain)
    held = outcomes([(at, shown_within(batch, T_MS + 12_000, T_MS + 15_000)) for at, batch in messages])
    assert made.passes[0].held_out.scores[0].rows == sum(key[3] == "click" for key in held)


def test_the_time_of_tables_goes_on_from_pass_to_pass(tmp_path: Path, messages: Messages) -> None:
    """What a pass has counted of keys without a row is forgotten in the next; otherwise rare ones would add up."""
    tables = {"admission_window_ms": STEP_MS, "admission_count": 3}
    made = Made(folder_of(tmp_path, messages, tables=tables), SplitRequest(hold_out=0.0), passes=3)
    assert made.split.span_ms == _LATER_MS
    every = Made(folder_of(tmp_path / "every", messages), SplitRequest(hold_out=0.0))
    for table, keys in every.keys[0].items():
        first, _, last = (one[table] for one in made.keys)
        assert 0 < first < keys / 2
        # The end of a pass and the beginning of the next are one window.
        assert first <= last <= 1.1 * first


def test_a_pass_that_is_stopped_is_not_told_of(tmp_path: Path, messages: Messages) -> None:
    stop = threading.Event()

    def show(number: int, tally: Any) -> None:
        if number == 2:
            stop.set()

    with evaluation_of(folder_of(tmp_path, messages), SplitRequest()) as (evaluation, _, _):
        assert [one.number for one in evaluation.passes(3, stop, show)] == [1]


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


@pytest.fixture
def app(tmp_path: Path, messages: Messages) -> AppFolder:
    app = write_app(tmp_path / "app", {"trainer": _TRAINER, "publisher": {"publish_interval_s": 3_600}})
    write_messages(app, messages)
    return app


@pytest.fixture
def evaluate(monkeypatch: pytest.MonkeyPatch, app: AppFolder) -> Callable[..., Any]:
    """Runs the verb on the application, in this process; gives typer's result."""
    monkeypatch.setenv("COLUMNS", "160")
    return lambda *words: CliRunner().invoke(cli, ["evaluate", str(app.folder), *words])


def test_the_verb_says_each_pass_and_leaves_everything_live_as_it_was(
    app: AppFolder, verb: Callable[..., Any], evaluate: Callable[..., Any], messages: Messages
) -> None:
    trained = verb(app, "--until-offset", "end")
    assert trained.exit_code == 0, trained.output
    before = files_of(app.folder)
    assert any("manifest.json" in name for name in before)
    result = evaluate("--passes", "2", "--hold-out", "0.25", "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert [one["pass"] for one in said["passes"]] == [1, 2]
    assert said["from_ms"] < said["test_from_ms"] < said["to_ms"] < said["complete_ms"] == T_MS + _LATER_MS
    for one in said["passes"]:
        assert one["rows_read"] == sum(len(batch) for _, batch in messages)
        assert one["rows_skipped"] > 0
        assert {score["label"] for score in one["held_out"]} == {"click", "bought"}
        for score in one["held_out"]:
            assert 0 <= score["auc"] <= 1
            assert score["log_loss"] > 0
            assert score["calibration"] > 0
    assert said["passes"][1]["loss"] < said["passes"][0]["loss"]
    # People read the same.
    shown = evaluate("--passes", "2", "--hold-out", "0.25")
    for one in said["passes"]:
        assert f"{one['loss']:.4f}".rstrip("0") in shown.stdout
    assert files_of(app.folder) == before
    # And it begins anew, whatever the newest version has learned.
    again = json.loads(evaluate("--hold-out", "0.25", "--json").stdout)
    assert again["passes"][0]["loss"] == said["passes"][0]["loss"]


def test_neither_store_nor_registry_nor_shards_are_needed(app: AppFolder, evaluate: Callable[..., Any]) -> None:
    nowhere = f"file://{app.folder}/app.toml/no-folder"
    away = (f"versions.store={nowhere}", "registry.url=redis://127.0.0.1:1/0", 'ps.addresses=["127.0.0.1:1"]')
    result = evaluate(*(word for one in away for word in ("--set", one)))
    assert result.exit_code == 0, result.output
    assert not (app.folder / "store").exists()


def test_one_that_is_stopped_ends_with_status_3_and_says_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch, evaluate: Callable[..., Any]
) -> None:
    @contextmanager
    def stopped() -> Iterator[threading.Event]:
        stop = threading.Event()
        stop.set()
        yield stop

    monkeypatch.setattr("streamlearn.replay.stop_on_signals", stopped)
    result = evaluate("--passes", "2")
    assert result.exit_code == 3
    assert "stopped after 0 of 2 passes" in result.output


def refused(result: Any, kind: type[StreamlearnError], *said: str) -> None:
    assert type(result.exception) is kind, result.output
    assert result.exception.help
    text = f"{result.exception.message}\n{result.exception.help}"
    for one in said:
        assert one in text, text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--hold-out", "0.1", "--test-from", "2023-11-14"), ("--test-from or --hold-out",)),
        (("--hold-out", "1"), ("share to hold out: 1", "--hold-out")),
        (("--hold-out", "-0.1"), ("share to hold out: -0.1",)),
        (("--hold-out", "nan"), ("share to hold out: nan",)),
        (("--hold-out", "0.999"), ("all rows would be held out, or none", "--from")),
        (("--test-from", "yesterday"), ("'yesterday' is not a time", "UTC")),
        (("--test-from", "2001-01-01"), ("all rows would be held out, or none", f"{T_MS} ms")),
        (("--test-from", "2101-01-01"), ("all rows would be held out, or none", f"{T_MS} ms")),
        (("--from", "2101-01-01"), ("none of the", "--from")),
        (("--from", "2023-11-16", "--to", "2023-11-15"), ("are not in increasing order", "--from must be before")),
        (("--from", "2023-11-16", "--test-from", "2023-11-15"), ("are not in increasing order",)),
        (("--until-offset", "9:1"), ("PARTITION:OFFSET",)),
        (("--until-offset", "0:0,1:0"), ("none of the 0 rows", "streamlearn ingest")),
        (("--until-offset", "0:6,1:6"), ("have no final label yet", "wait until ingest")),
    ],
)
def test_a_bad_option_is_refused_with_help(evaluate: Callable[..., Any], words: Any, said: Any) -> None:
    refused(evaluate(*words), UsageError, *said)


def test_a_short_stretch_is_answered_with_options_that_work(tmp_path: Path) -> None:
    app = write_app(tmp_path / "short", {"trainer": _TRAINER})
    # Labels of the first ten seconds are final, of twenty that there are.
    write_messages(app, complete(messages_of(app.app, 20), later_ms=70_000))
    words = ["evaluate", str(app.folder)]
    result = CliRunner().invoke(cli, words)
    refused(result, UsageError, "have no final label yet")
    assert isinstance(result.exception, UsageError)
    (options,) = re.findall(r"`streamlearn evaluate \S+ (--test-from .*)`", result.exception.help)
    done = CliRunner().invoke(cli, [*words, *options.split()])
    assert done.exit_code == 0, done.output


def test_no_pass_at_all_is_refused(evaluate: Callable[..., Any]) -> None:
    result = evaluate("--passes", "0")
    assert result.exit_code == 2
    assert "--passes" in result.output


def test_without_samples_it_says_which_topic_is_missing(tmp_path: Path) -> None:
    app = write_app(tmp_path / "none", {})
    refused(CliRunner().invoke(cli, ["evaluate", str(app.folder)]), TopicMissing, "samples")
