"""Towers beside workers: the leader learns them, with the same bytes whoever learns the ranking model."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np

from streamlearn.testing import wait_until
from streamlearn.topics import create_topic
from streamlearn.trainer.towers.tower_steps import TowerSteps
from streamlearn.trainer.trainer import Trainer
from streamlearn.trainer.workers.leader import Leader
from tests.trainer.processes import APP
from tests.trainer.runs import known_of, state_of
from tests.trainer.stream import outcomes, write_messages
from tests.trainer.workers.jobs import Job, wait_for, worker_process

_TOWERED = APP.replace("tests.trainer.stream", "tests.trainer.towers.towered").replace("learnable_app", "towered_app")


def towered(path: Path, ends: ExitStack) -> Job:
    """A job whose application retrieves, with samples."""
    made = Job(path, ends, text=_TOWERED)
    folder = made.folder()
    create_topic(folder.topic_url("items"), folder.topic_settings("items", 2), folder.access, exist_ok=True).close()
    write_messages(folder, made.messages)
    return made


def test_towers_have_the_same_bytes_without_slices_and_for_one_two_and_three_workers(tmp_path: Path) -> None:
    states = []
    with ExitStack() as ends:
        for number, workers in enumerate((None, 0, 1, 2)):
            job = towered(tmp_path / f"job{number}", ends)
            if workers is None:
                report = job.train("workers.slices=1", "workers.listen=[]")
            else:
                with job.workers(workers) as errors:
                    report = job.train(show=wait_for(workers + 1))
                assert not errors
            assert (report.recoveries, report.tally.refused_steps) == (0, 0)
            assert known_of(job.folder(), job.messages) == outcomes(job.messages)
            states.append(state_of(job.folder()))
    whole, *sliced = states
    assert np.frombuffer(whole["dense_optimizer.retrieval/steps"], np.int64).item() > 3
    of_towers = [name for name in whole if "retrieval/" in name or name.startswith("towers.")]
    assert len(of_towers) > 3
    for state in sliced:
        assert [name for name in of_towers if state[name] != whole[name]] == []
        assert state == sliced[0]


def test_towers_go_back_with_the_ranking_model_when_a_worker_is_killed(tmp_path: Path) -> None:
    killed = list[int]()
    with ExitStack() as ends:
        alone, struck = (towered(tmp_path / name, ends) for name in ("alone", "struck"))
        alone.train()
        with worker_process(struck) as worker:
            join = wait_for(2)

            def strike(trainer: Trainer) -> None:
                join(trainer)
                steps = trainer._step_learner
                assert isinstance(steps, TowerSteps)
                leader = steps.ranking
                assert isinstance(leader, Leader)
                if trainer.tally.steps >= 2 and not killed:
                    wait_until(lambda: any(one.held for one in leader.workers if one.name != "leader"), "a slice")
                    killed.append(steps.state.learner.steps)
                    worker.kill()

            report = struck.train(show=strike)
    assert killed
    assert killed[0] > 0
    assert report.recoveries == 1
    assert known_of(struck.folder(), struck.messages) == outcomes(struck.messages)
    assert state_of(struck.folder()) == state_of(alone.folder())
