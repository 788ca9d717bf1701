"""Ingest on Prism, whatever of it is killed: it ends at once with an error, leaves nothing, and the next run goes on.

`make test` kills each part once, on topics of a real broker; with INGEST_KILLS it goes on for so many kills.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamlearn.apps import AppFolder
from streamlearn.testing import wait_until
from streamlearn.topics import Reader, Topic
from tests.ingest.family import family_of, is_alive, one_of
from tests.ingest.history import STEP_MS, T_MS, fill, learned, messages, outcomes, watched, write_app
from tests.ingest.test_samples_pipeline import check_messages
from tools.services import Kafka

_KILLS = int(os.environ.get("INGEST_KILLS", "3"))
_SEED = int(os.environ.get("INGEST_SEED", "1"))
_DEADLINE_S, _END_S_MAX = 300.0, 120.0
_PIECE = 120
# Prism's worker is a part of the process that ingest is.
_VICTIMS = {"prism": "--job_port", "ingest": "streamlearn\0ingest"}


@contextmanager
def job(app: AppFolder, *more: str, verb: str = "ingest") -> Iterator[subprocess.Popen[str]]:
    """A run in a process of its own; it and all it started are killed in the end."""
    call = [sys.executable, "-m", "streamlearn", verb, str(app.folder), *more]
    # Beam starts a worker by the name `python`.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with (app.folder / "job.log").open("w") as log:
        process = subprocess.Popen(
            call, stdout=log, stderr=log, text=True, start_new_session=True, env=os.environ | {"PATH": path}
        )
        try:
            yield process
        finally:
            family = family_of(process.pid)
            process.kill()
            process.wait()
            wait_until(lambda: not any(map(is_alive, family)), "all that a run started is gone", _END_S_MAX)


def said(app: AppFolder) -> str:
    return (app.folder / "job.log").read_text()


def written_to(app: AppFolder) -> int:
    """How many messages of samples there are."""
    with app.open_topic("samples") as topic, topic.reader() as reader:
        return ends_of(topic, reader)


def ends_of(topic: Topic, reader: Reader) -> int:
    return sum(reader.end(partition) for partition in range(topic.partitions))


def wait_for(app: AppFolder, process: subprocess.Popen[str], time_ms: int, written: int) -> None:
    """Wait until lots are as far, or samples as many, whichever comes first."""
    with watched(app) as reached_ms, app.open_topic("samples") as topic, topic.reader() as reader:

        def has_come() -> bool:
            assert process.poll() is None, said(app)[-4000:]
            return reached_ms() >= time_ms or ends_of(topic, reader) >= written

        wait_until(has_come, f"progress of {time_ms} ms, or {written} messages", _DEADLINE_S)


def kill(app: AppFolder, process: subprocess.Popen[str], victim: str) -> None:
    """Kill one part: all the others end, and who started ingest is told why."""
    family = family_of(process.pid)
    os.kill(one_of(family, _VICTIMS[victim]), signal.SIGKILL)
    status = process.wait(_END_S_MAX)
    wait_until(lambda: not any(map(is_alive, family)), f"nothing is left once the {victim} was killed", _END_S_MAX)
    if victim == "ingest":
        assert status == -signal.SIGKILL
        return
    assert status == 1, said(app)[-4000:]
    assert "error: " in said(app)
    assert "prism, the runner" in said(app), said(app)[-4000:]


def test_whatever_is_killed_the_next_run_goes_on_and_all_is_learned_once(
    prism: Path, kafka: Kafka, topic_name: str, tmp_path: Path
) -> None:
    rng = random.Random(_SEED)
    app = write_app(tmp_path / "app", prism, lots=5, prefix=f"kafka://{kafka.address}/{topic_name}-")
    victims = list(_VICTIMS)
    for number in range(_KILLS):
        victim = victims[number] if number < len(victims) else rng.choice(victims)
        first, written = number * _PIECE, written_to(app)
        fill(app, first, _PIECE)
        target_ms = T_MS + (first + rng.randrange(1, _PIECE - 40)) * STEP_MS
        with job(app) as process:
            wait_for(app, process, target_ms, written + rng.randrange(1, 40))
            kill(app, process, victim)
    fill(app, _KILLS * _PIECE, 40, end=True)
    with job(app) as process:
        assert process.wait(_DEADLINE_S) == 0, said(app)[-4000:]
    expected = outcomes(app)
    assert len(expected) > 2 * _KILLS * _PIECE
    assert learned(app) == expected
    assert len({batch.header.ingest_run for _, batch in messages(app)}) > min(3, _KILLS)
    check_messages(app)


def test_a_ctrl_c_of_a_terminal_ends_a_run_once_what_is_due_is_written(prism: Path, tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", prism, lots=2)
    fill(app, 0, 100)
    with job(app, "--json") as process:
        wait_for(app, process, T_MS + 50 * STEP_MS, 1 << 30)
        os.killpg(process.pid, signal.SIGINT)  # a terminal gives it to all that runs in front of it
        assert process.wait(_DEADLINE_S) == 0, said(app)[-4000:]
    assert '"stopped": true' in said(app)
    fill(app, 100, 40, end=True)
    with job(app) as process:
        assert process.wait(_DEADLINE_S) == 0, said(app)[-4000:]
    assert learned(app) == outcomes(app)


def test_a_backfill_whose_runner_is_killed_says_so_and_is_run_again(prism: Path, tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", prism, lots=2)
    fill(app, 0, 200, end=True)
    with job(app, "--set", "ingest.stretch_s=20", verb="backfill") as process:
        wait_until(lambda: written_to(app) > 3, "a stretch was joined", _DEADLINE_S)
        assert process.poll() is None, said(app)[-4000:]
        kill(app, process, "prism")
    with job(app, "--set", "ingest.stretch_s=2000", verb="backfill") as process:
        assert process.wait(_DEADLINE_S) == 0, said(app)[-4000:]
    assert learned(app) == outcomes(app)
