"""A job: whatever the number of workers, whoever comes, goes or dies, the versions have the same bytes."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from typer.testing import CliRunner

from streamlearn.cli.main import cli
from streamlearn.errors import (
    ConfigError,
    ExecutionFailed,
    ShardNotReady,
    ShardRefused,
    ShardUnreachable,
    StreamlearnError,
    TableBusy,
)
from streamlearn.samples import SampleBatch
from streamlearn.testing import wait_until
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.trainer import Trainer, TrainReport
from streamlearn.trainer.trainer_setup import train
from streamlearn.trainer.workers.leader import Leader
from streamlearn.trainer.workers.leader_link import LeaderLink
from streamlearn.trainer.workers.messages import Report
from streamlearn.trainer.workers.slice_worker import SUMS_KEPT, SliceWorker
from streamlearn.trainer.workers.worker_facts import worker_facts
from tests.trainer.processes import job as process_of
from tests.trainer.processes import newest
from tests.trainer.runs import known_of, state_of, until_end
from tests.trainer.stream import outcomes, write_messages
from tests.trainer.workers.jobs import Job, give_up_sooner, wait_for, worker_process


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    with ExitStack() as ends:
        count = iter(range(9))
        yield lambda **trainer: Job(tmp_path / f"job{next(count)}", ends, **trainer)


def bytes_of(job: Job) -> dict[str, bytes]:
    return state_of(job.folder())


@pytest.mark.parametrize(
    ("counts", "trainer"),
    [((0, 1, 3), {}), ((0, 2), {"optimizer": "sgd", "row_gradients": "mean", "clip_norm": 0.5, "l2": 0.01})],
)
def test_versions_have_the_same_bytes_for_one_two_and_four_workers(
    job: Callable[..., Job], counts: tuple[int, ...], trainer: Any
) -> None:
    found = []
    for count in counts:
        one = job(**trainer)
        write_messages(one.folder(), one.messages)
        with one.workers(count) as errors:
            report = one.train(show=wait_for(count + 1))
        assert not errors
        assert (report.recoveries, report.tally.refused_steps) == (0, 0)
        assert known_of(one.folder(), one.messages) == outcomes(one.messages)
        found.append(bytes_of(one))
    alone, *others = found
    for other in others:
        assert alone.keys() == other.keys()
        assert [name for name in alone if other[name] != alone[name]] == []


def test_a_worker_that_stops_and_goes_on_and_one_that_is_killed_change_no_byte(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, struck = job(), job()
    for one in (alone, struck):
        write_messages(one.folder(), one.messages)
    alone.train()
    done = list[str]()
    with worker_process(struck) as worker:
        give_up_sooner(monkeypatch, worker.pid, lambda: done == ["stopped"])
        join = wait_for(2)

        def strike(trainer: Trainer) -> None:
            join(trainer)
            leader = trainer._step_learner
            assert isinstance(leader, Leader)

            def holds() -> bool:
                return any(state.held for state in leader.workers if state.name != "leader")

            if trainer.tally.steps >= 2 and not done:
                wait_until(holds, "a slice of the next step")
                worker.send_signal(signal.SIGSTOP)  # it is silent: the others begin again without it
                done.append("stopped")
            elif done == ["stopped"] and trainer._recoveries:
                done.append("went on")
                worker.send_signal(signal.SIGCONT)
                wait_until(lambda: len(leader.workers) == 2, "its return")
            elif done[-1:] == ["went on"]:
                wait_until(holds, "a slice of the next step")
                worker.kill()
                done.append("killed")

        report = struck.train(show=strike)
    assert done == ["stopped", "went on", "killed"]
    assert report.recoveries == 2
    assert known_of(struck.folder(), struck.messages) == outcomes(struck.messages)
    expected, found = bytes_of(alone), bytes_of(struck)
    assert [name for name in expected if found[name] != expected[name]] == []


def test_a_worker_that_is_told_to_stop_finishes_what_it_holds(job: Callable[..., Job]) -> None:
    one = job()
    write_messages(one.folder(), one.messages)
    with one.workers(1) as errors:
        join, stopped = wait_for(2), threading.Event()

        def show(trainer: Trainer) -> None:
            join(trainer)
            leader = trainer._step_learner
            assert isinstance(leader, Leader)
            if trainer.tally.steps >= 2 and not stopped.is_set():
                wait_until(lambda: any(state.held for state in leader.workers if state.name != "leader"), "a slice")
                one.stop.set()
                stopped.set()

        report = one.train(show=show)
    assert stopped.is_set()
    assert not errors
    assert report.recoveries == 0
    assert known_of(one.folder(), one.messages) == outcomes(one.messages)


def test_a_leader_that_is_killed_finds_its_worker_again(job: Callable[..., Job]) -> None:
    alone, struck = job(), job()
    for one in (alone, struck):
        write_messages(one.folder(), one.messages)
    alone.train()
    folder = struck.folder()
    words = [word for change in struck.changes for word in ("--set", change)]
    with struck.workers(1) as errors:
        with process_of(folder, *words) as leader:
            wait_until(lambda: newest(folder) is not None, "the first version")
            leader.kill()
        report = struck.train(show=wait_for(2))
    assert not errors
    assert report.run == 2
    expected, found = bytes_of(alone), bytes_of(struck)
    assert [name for name in expected if found[name] != expected[name]] == []


def test_a_worker_that_missed_the_sums_of_many_steps_takes_the_newest_weights(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, leaders, waited = job(step_rows=16), list[Leader](), threading.Event()
    write_messages(one.folder(), one.messages)
    report, welcome, catch_up = Leader.report, Leader._welcome, SliceWorker._catch_up

    def slow(self: Leader, given: Report, logits: Any) -> None:
        # Whoever is as slow as that gets no further slice.
        report(self, given if given.worker == "leader" else structs.replace(given, busy_s=1e6), logits)

    def late(self: SliceWorker, step: int) -> None:
        if self._name != "leader" and not waited.is_set():
            member = leaders[0]._roster.members[self._name]
            if member.slices and not member.held:
                wait_until(lambda: leaders[0]._own.applied > self.applied + SUMS_KEPT, "further steps")
                waited.set()
        catch_up(self, step)

    def noted(self: Leader, ask: Any, now_s: float) -> Any:
        leaders.append(self)
        return welcome(self, ask, now_s)

    monkeypatch.setattr(Leader, "report", slow)
    monkeypatch.setattr(Leader, "_welcome", noted)
    monkeypatch.setattr(SliceWorker, "_catch_up", late)
    first = wait_for(2)

    def show(trainer: Trainer) -> None:
        first(trainer)
        if trainer.tally.steps >= 20:
            wait_until(lambda: errors or len(leaders) > 1, "its return")

    with one.workers(1) as errors:
        result = one.train(show=show)
    assert not errors
    assert result.recoveries == 0


@pytest.mark.parametrize("error", [ShardNotReady, TableBusy])
def test_a_leader_that_cannot_answer_now_is_asked_again(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, error: type[StreamlearnError]
) -> None:
    one, asked, send = job(), list[Any](), LeaderLink._order_once

    def refused(self: LeaderLink, head: Any, *rest: Any) -> bytes:
        asked.append(head)
        if len(asked) % 3 == 1:
            message = "the limit of 64 unanswered orders is reached"
            raise error(message, help="")
        return send(self, head, *rest)

    monkeypatch.setattr(LeaderLink, "_order_once", refused)
    write_messages(one.folder(), one.messages)
    with one.workers(1) as errors:
        assert one.train(show=wait_for(2)).recoveries == 0
    assert not errors


def test_a_slice_that_is_not_finite_takes_its_whole_step_with_it(job: Callable[..., Job]) -> None:
    found = []
    for count in (0, 2):
        one = job()
        write_messages(one.folder(), [*one.messages[:2], (0, spoilt(one.messages[2][1])), *one.messages[3:]])
        with one.workers(count) as errors:
            report = one.train(show=wait_for(count + 1))
        assert not errors
        assert report.tally.refused_steps > 0
        found.append((report.tally.refused_rows, report.tally.rows, bytes_of(one)))
    assert found[0] == found[1]


def spoilt(batch: SampleBatch) -> SampleBatch:
    """One row's number is none, as are then its gradients."""
    numbers = batch.item.dense["length"].copy()
    numbers[7] = np.nan
    return replace(batch, item=replace(batch.item, dense={**batch.item.dense, "length": numbers}))


@pytest.mark.parametrize(
    "change", ["trainer.rate=0.02", "tables.rate=0.3", "workers.slices=2", 'ps.encoding="float16"']
)
def test_a_worker_with_other_settings_is_refused(job: Callable[..., Job], change: str) -> None:
    one = job()
    write_messages(one.folder(), one.messages)
    with one.workers(1, change) as errors:

        def show(trainer: Trainer) -> None:
            wait_until(lambda: errors, "the refusal")

        one.train(show=show)
    assert isinstance(errors[0], ShardRefused), errors
    assert any(word in errors[0].message for word in ("settings", "optimizer.rate")), errors[0].message


def test_the_verb_and_the_console_say_who_learns(job: Callable[..., Job]) -> None:
    one, found = job(), list[Any]()
    write_messages(one.folder(), one.messages)
    folder = one.folder("up.workers=2")
    words = [str(one.path), *(word for change in one.changes for word in ("--set", change))]
    with one.workers(1):

        def show(trainer: Trainer) -> None:
            wait_for(2)(trainer)
            found.append(worker_facts(folder, "", None, 60.0))
            found.append(json.loads(CliRunner().invoke(cli, ["workers", *words, "--json"]).stdout))
            found.append(CliRunner().invoke(cli, ["workers", *words]).stdout)
            one.stop.set()

        one.train("up.workers=2", show=lambda trainer: None if found else show(trainer))
    console, verb, table = found
    assert console.keys() == verb.keys()
    assert console["error"] == ""
    for facts in (console, verb):
        assert [(member["name"] == "leader", member["slices"] >= 0) for member in facts["members"]] == [
            (True, True), (False, True),
        ]  # fmt: skip
        assert facts["wanted"] == 3
        assert 0 < facts["short_since_ms"] <= facts["asked_ms"]
    assert "slices learned" in table
    assert "2 of 3 learn; at least one has been missing since 20" in table


def test_who_learns_is_unknown_without_an_address_or_an_answer(job: Callable[..., Job]) -> None:
    one = job()
    assert worker_facts(one.folder("workers.slices=1"), "", None, 0.1) is None, "one process learns the model"
    unknown = {"asked_ms": 0, "wanted": 0, "short_since_ms": 0, "members": []}
    for change, leader, error in (
        ("workers.listen=[]", "", "the address of the trainer is not known"),
        ("workers.listen=[]", "127.0.0.1:1", "the trainer at 127.0.0.1:1: "),
    ):
        facts = worker_facts(one.folder(change), leader, None, 0.1)
        assert facts is not None
        assert facts.pop("error").startswith(error)
        assert facts.pop("help")
        assert facts == unknown


def test_a_trainer_that_is_away_is_not_taken_for_a_shard(job: Callable[..., Job]) -> None:
    folder = job().folder()
    with LeaderLink(folder, "127.0.0.1:1") as link, pytest.raises(ShardUnreachable) as caught:
        link.who(0.1)
    assert caught.value.message.startswith("the trainer at 127.0.0.1:1: ")
    assert "streamlearn train" in (caught.value.help or "")
    assert "shard" not in str(caught.value)


def test_a_worker_that_finds_no_leader_ends_with_the_status_that_starts_it_again(job: Callable[..., Job]) -> None:
    one = job()
    words = [word for change in (*one.changes, "ps.retry_wait_ms_max=1000") for word in ("--set", change)]
    done = CliRunner().invoke(cli, ["work", str(one.path), *words])
    assert done.exit_code == 75
    assert f"error: the trainer at unix:{one.path}/leader.sock" in done.stderr


def test_an_address_for_workers_needs_slices(job: Callable[..., Job]) -> None:
    one = job()
    write_messages(one.folder(), one.messages)
    with pytest.raises(ConfigError, match="nothing for workers to learn"):
        one.train("workers.slices=1")


def test_slices_need_shards(job: Callable[..., Job]) -> None:
    one = job()
    write_messages(one.folder(), one.messages)
    with pytest.raises(ConfigError, match=r"ps\.addresses is empty"):
        one.train("ps.addresses=[]")


def test_a_leader_that_learns_nothing_stops_though_no_worker_is_there(job: Callable[..., Job]) -> None:
    one, stop, reports = job(), threading.Event(), list[TrainReport]()
    write_messages(one.folder(), one.messages)
    folder = one.folder("workers.leader_learns=false")

    def run() -> None:
        reports.append(train(folder, stop, until=until_end))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_until(lambda: newest(folder) is not None, "the first version")
    stop.set()
    thread.join(120)
    assert reports, "it waits for ever"
    assert reports[0].tally.rows == 0
    with one.workers(2):  # what was left is learned next time
        one.train("workers.leader_learns=false")
    assert known_of(one.folder(), one.messages) == outcomes(one.messages)


def test_a_leader_that_learns_nothing_needs_an_address_for_workers(job: Callable[..., Job]) -> None:
    one = job()
    write_messages(one.folder(), one.messages)
    with pytest.raises(ConfigError, match="no process could learn"):
        one.train("workers.leader_learns=false", "workers.listen=[]")


def test_a_worker_that_cannot_be_answered_leaves_the_others_served(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, failed, answer = job(), list[str](), Leader.answer

    def failing(self: Leader, ask: Any, *, always: bool = False) -> Any:
        if not failed:
            failed.append(ask.worker)
            raise MemoryError
        return answer(self, ask, always=always)

    monkeypatch.setattr(Leader, "answer", failing)
    write_messages(one.folder(), one.messages)
    with one.workers(2) as errors:
        assert one.train(show=wait_for(2)).recoveries == 0
    assert len(errors) == 1
    assert isinstance(errors[0], ShardRefused)


def test_an_error_of_the_leaders_own_slices_is_the_one_that_ends_training(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, pack = job(), Rows.pack_inputs

    def failing(self: Rows, *arguments: Any, **more: Any) -> Any:
        if len(packed) > 1:
            message = "the model is wrong"
            raise ExecutionFailed(message, help="")
        packed.append(1)
        return pack(self, *arguments, **more)

    packed = list[int]()
    monkeypatch.setattr(Rows, "pack_inputs", failing)
    write_messages(one.folder(), one.messages)
    with pytest.raises(ExecutionFailed):
        one.train()
