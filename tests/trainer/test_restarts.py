"""Training, whatever of it is killed: the next run goes on, each label is learned once, and strict order to the byte.

`make test` kills the trainer twice; with TRAINER_KILLS it goes on for so many kills.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamlearn.apps import AppFolder
from streamlearn.errors import EpochOver, RunOver
from streamlearn.ps import PsClient
from streamlearn.table import declared_tables
from streamlearn.testing import wait_until
from streamlearn.trainer.learning_loop import LearnedStep
from streamlearn.trainer.trainer import TrainReport
from tests.trainer.processes import job, newest, said, store_files, write_app
from tests.trainer.runs import known_of, run, state_of
from tests.trainer.shards import ShardProcesses
from tests.trainer.stream import messages_of, outcomes, write_messages

_KILLS = int(os.environ.get("TRAINER_KILLS", "2"))
_SHARD_KILLS = max(2, _KILLS // 8)
_SEED = int(os.environ.get("TRAINER_SEED", "1"))
_DEADLINE_S, _PIECE, _ROWS = 300.0, 30, 40
_SETTINGS: dict[str, dict[str, Any]] = {
    "trainer": {"order": "strict", "step_rows": 64, "rate": 0.01},
    "publisher": {"publish_interval_s": 0.02},
    # Keys that leave are of what must be the same.
    "tables": {"rows_max": 200_000, "idle_s": 8.0, "expire_steps": 7},
}


def _samples(app: AppFolder) -> float:
    manifest = newest(app)
    return 0.0 if manifest is None else manifest.metrics["samples"]


def wait_for(app: AppFolder, process: subprocess.Popen[str], files: int, samples: float) -> None:
    """Wait until the store has so many files, or a version says so many samples, whichever comes first."""

    def has_come() -> bool:
        assert process.poll() is None, said(app)
        return store_files(app) >= files or _samples(app) >= samples

    wait_until(has_come, f"{files} files, or {samples} samples", _DEADLINE_S)


def test_a_trainer_killed_at_any_time_is_followed_by_one_that_learns_the_same_bytes(tmp_path: Path) -> None:
    rng = random.Random(_SEED)
    app = write_app(tmp_path / "app", _SETTINGS)
    messages = messages_of(app.app, (_KILLS + 1) * _PIECE, _ROWS)
    share, begun = len(messages) // (_KILLS + 1), 0
    for number in range(_KILLS):
        write_messages(app, messages[begun : begun + share])
        begun += share
        # By turns in the midst of a version's files, the first of which is the run's fence; and as it goes on.
        files = store_files(app) + rng.randrange(1, 40) if number % 2 else 1 << 30
        with job(app) as process:
            wait_for(app, process, files, _samples(app) + rng.randrange(1, share * _ROWS // 2))
            process.kill()
            assert process.wait() == -signal.SIGKILL, number
    write_messages(app, messages[begun:])
    report = run(app)
    assert report.run == _KILLS + 1
    assert report.recoveries == 0

    whole = write_app(tmp_path / "whole", _SETTINGS | {"publisher": {"publish_interval_s": 3_600}})
    write_messages(whole, messages)
    at_once = run(whole)
    assert known_of(app, messages) == known_of(whole, messages) == outcomes(messages)
    assert state_of(app) == state_of(whole)
    assert _samples(app) == _samples(whole) == at_once.tally.rows
    # They did not begin from nothing each time.
    assert report.tally.rows < at_once.tally.rows


def on_shards(
    app: AppFolder, work: Callable[[AppFolder, ShardProcesses, PsClient], TrainReport], count: int = 2
) -> TrainReport:
    """Something done with a client of shards, each a process."""
    shards = ShardProcesses(app.folder, app.store_url, count)
    try:
        ps = msgspec.structs.replace(app.settings.ps, addresses=shards.addresses)
        with PsClient.connect(app.app.name, declared_tables(app.app.tables, app.settings.tables), ps) as client:
            return work(app, shards, client)
    finally:
        shards.close()


def with_kills(app: AppFolder, shards: ShardProcesses, client: PsClient) -> TrainReport:
    """A run during which shards are killed, and started again while it meets that they are gone."""
    rng, learned = random.Random(_SEED), [0]
    at = {step: rng.randrange(2) for step in rng.sample(range(2, 10 * _SHARD_KILLS), _SHARD_KILLS)}
    starts: list[threading.Thread] = []

    def told(_: LearnedStep) -> None:
        learned[0] += 1
        if learned[0] in at:
            for one in starts:  # the last one is there again
                one.join()
            victim = at[learned[0]]
            shards.kill(victim)
            starts.append(threading.Thread(target=shards.start_again, args=(victim,)))
            starts[-1].start()

    try:
        return run(app, client=client, on_step=told)
    finally:
        for one in starts:
            one.join()


@pytest.mark.parametrize("order", ["strict", "arrival"])
def test_a_trainer_goes_on_by_itself_when_shards_are_killed(order: str, tmp_path: Path) -> None:
    trainer = _SETTINGS["trainer"] | {"order": order}
    app = write_app(tmp_path / "app", _SETTINGS | {"trainer": trainer})
    messages = messages_of(app.app, 24 * _SHARD_KILLS, _ROWS)
    write_messages(app, messages)
    report = on_shards(app, with_kills)
    assert report.run == 1
    assert 1 <= report.recoveries <= _SHARD_KILLS * 3
    assert known_of(app, messages) == outcomes(messages)
    if order == "strict":
        whole = write_app(tmp_path / "whole", _SETTINGS | {"publisher": {"publish_interval_s": 3_600}})
        write_messages(whole, messages)
        run(whole)
        assert state_of(app) == state_of(whole)


def test_of_two_trainers_on_the_same_shards_the_older_one_ends(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", _SETTINGS)
    messages = messages_of(app.app, 24, _ROWS)
    write_messages(app, messages)
    second: list[TrainReport] = []

    def both(app: AppFolder, shards: ShardProcesses, client: PsClient) -> TrainReport:
        ps = msgspec.structs.replace(app.settings.ps, addresses=shards.addresses)
        options = declared_tables(app.app.tables, app.settings.tables)

        def told(_: LearnedStep) -> None:
            if not second:
                with PsClient.connect(app.app.name, options, ps) as other:
                    second.append(run(app, client=other))

        with pytest.raises((RunOver, EpochOver)) as ended:
            run(app, client=client, on_step=told)
        assert ended.type is RunOver
        return second[0]

    assert on_shards(app, both, count=1).run == 2
    manifest = newest(app)
    assert manifest is not None
    assert manifest.run == 2
    assert known_of(app, messages) == outcomes(messages)


def test_a_sigterm_ends_a_trainer_with_a_version_that_says_all_it_learned(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", {"trainer": {"step_rows": 64}, "publisher": {"publish_interval_s": 0.02}})
    messages = messages_of(app.app, 20, _ROWS)
    write_messages(app, messages[:12])
    with job(app, "--json") as process:
        wait_for(app, process, 1 << 30, 1)
        # It is in the midst of these, or has not seen them yet.
        write_messages(app, messages[12:])
        process.send_signal(signal.SIGTERM)
        assert process.wait(_DEADLINE_S) == 0, said(app)
    report, manifest = json.loads((app.folder / "job.out").read_text()), newest(app)
    assert manifest is not None
    assert (report["run"], report["version"]) == (1, manifest.version)
    assert manifest.metrics["samples"] == report["rows"] > 0
    # The next run learns the rest, and nothing twice.
    run(app)
    assert known_of(app, messages) == outcomes(messages)
