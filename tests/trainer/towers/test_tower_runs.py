"""Runs with towers: ranking stays as it is, versions hold both models, and every recovery learns the same bytes."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.apps import App
from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.errors import UsageError
from streamlearn.features.retrieval import of_ranking
from streamlearn.samples import SampleBatch
from streamlearn.trainer.learning_loop import OwnSteps
from streamlearn.trainer.towers.tower_learner import TowerLearner
from streamlearn.trainer.towers.tower_steps import own_steps
from streamlearn.versions import Chain, load_tensors
from streamlearn.versions.pointer.request import Request, Requests
from tests.trainer.failing import Failing
from tests.trainer.runs import local_client, run, state_of, store_of
from tests.trainer.stream import learnable_app, messages_of, write_messages
from tests.trainer.towers.towered import learned, towered_app, towered_folder

MESSAGES = 24


def of_model(state: dict[str, bytes]) -> dict[str, bytes]:
    """What a version holds of the ranking model."""
    return {name: data for name, data in state.items() if not name.startswith("towers.") and ".retrieval/" not in name}


def without_ids(of: App, app: App, count: int) -> list[tuple[int, SampleBatch]]:
    """The messages of an application, as they are for one without retrieval."""
    fingerprint = app.samples_fingerprint
    return [
        (at, replace(batch, item_ids=None, header=replace(batch.header, feature_fingerprint=fingerprint)))
        for at, batch in messages_of(of, count)
    ]


def test_the_ranking_model_learns_the_same_bytes_with_and_without_towers(tmp_path: Path) -> None:
    both = towered_folder(tmp_path / "both")
    plain = towered_folder(tmp_path / "plain", app=learnable_app())
    write_messages(both, messages_of(both.app, MESSAGES))
    write_messages(plain, without_ids(both.app, plain.app, MESSAGES))
    learned(both)
    run(plain)
    state = state_of(both)
    assert of_model(state) == state_of(plain)
    assert len(state["towers.rows"]) > 0
    chain = Chain.find(store_of(both), both.app.name)
    names = {*load_tensors(chain.store, chain.head)}
    of_towers = {f"retrieval/{name}" for name in ("scale", "user_0", "user_0_bias", "user_1", "user_dense")}
    assert of_towers == names - {*of_ranking(dict.fromkeys(names))}


def test_without_retrieval_nothing_is_wrapped_and_no_version_knows_of_it(tmp_path: Path) -> None:
    plain = towered_folder(tmp_path, app=learnable_app())
    write_messages(plain, messages_of(plain.app, 4))
    with local_client(plain) as client:
        assert own_steps(plain, client, None) is OwnSteps
    learned(plain)
    chain = Chain.find(store_of(plain), plain.app.name)
    assert [table.name for table in chain.manifest.tables] == ["main", "tags"]
    assert not [name for name in state_of(plain) if "retrieval" in name or "towers" in name]


def test_recoveries_and_restarts_learn_the_same_bytes(tmp_path: Path) -> None:
    whole, broken, stopped = (towered_folder(tmp_path / name) for name in ("whole", "broken", "stopped"))
    messages = messages_of(whole.app, MESSAGES)
    write_messages(whole, messages)
    learned(whole)
    write_messages(broken, messages)
    eager = replace(
        broken, settings=towered_folder(tmp_path / "broken", {"publisher": {"publish_interval_s": 0.001}}).settings
    )
    assert learned(eager, on_step=Failing(3, 7)).recoveries == 2
    assert state_of(broken) == state_of(whole)
    write_messages(stopped, messages)
    stop = threading.Event()
    learned(stopped, stop=stop, on_step=lambda done: stop.set() if done.steps == 2 else None)
    assert state_of(stopped) != state_of(whole)
    learned(stopped)
    assert state_of(stopped) == state_of(whole)


def test_a_rewind_puts_the_towers_back_too(tmp_path: Path) -> None:
    folder, once = towered_folder(tmp_path / "folder"), towered_folder(tmp_path / "once")
    messages = messages_of(folder.app, MESSAGES)
    for each in (folder, once):
        write_messages(each, messages)
        learned(each)
    first = Chain.find(store_of(folder), folder.app.name, 1)
    Requests(store_of(folder), folder.app.name, clock=SYSTEM_CLOCK).ask(Request(to=first.ref))
    report = learned(folder)
    assert report.rewinds == 1
    assert state_of(folder) == state_of(once)


def test_a_retrieval_that_was_declared_otherwise_is_refused(tmp_path: Path) -> None:
    folder = towered_folder(tmp_path)
    write_messages(folder, messages_of(folder.app, 4))
    learned(folder)
    other = replace(folder, app=towered_app(label="bought"))
    with pytest.raises(UsageError, match="another retrieval than the application declares") as refused:
        learned(other)
    assert "streamlearn migrate NEW" in refused.value.help
    narrower = replace(folder, app=towered_app(dim=4))
    with pytest.raises(UsageError, match="other tables: dim of 'towers' was 8 and is now 4"):
        learned(narrower)


def test_a_step_of_the_towers_that_is_not_finite_changes_nothing_of_either_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, plain = towered_folder(tmp_path / "folder"), towered_folder(tmp_path / "plain", app=learnable_app())
    write_messages(folder, messages_of(folder.app, 6))
    write_messages(plain, without_ids(folder.app, plain.app, 6))
    whole, steps = TowerLearner.learn, []

    def bad(self: TowerLearner, packed: Any, chances: Any, rate_scale: float = 1.0) -> Any:
        steps.append(self.steps)
        return whole(self, replace(packed, item_flat=packed.item_flat * np.float32("nan")), chances, rate_scale)

    monkeypatch.setattr(TowerLearner, "learn", bad)
    assert learned(folder).tally.refused_steps == 0
    run(plain)
    state = state_of(folder)
    assert set(steps) == {0}
    assert of_model(state) == state_of(plain)
    assert state["towers.keys"] == b""
    assert not np.frombuffer(state["dense_optimizer.retrieval/last"], np.float32).any()
