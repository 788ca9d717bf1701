"""Settings of tables and of training, in one run of a trainer that is made as `streamlearn train` makes it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamlearn import marks
from streamlearn.apps import AppFolder, load_app
from streamlearn.ps import PsClient
from streamlearn.table import set as table_set
from streamlearn.table.options import RowwiseAdagrad
from streamlearn.trainer import learning_loop, trainer_setup
from streamlearn.trainer import trainer as trainer_module
from streamlearn.trainer.expiry_schedule import ExpirySchedule
from streamlearn.trainer.intake import sample_range
from streamlearn.versions import Chain, History, PointerLog, open_store
from streamlearn.versions.format.verdict import read_verdict
from tests.settings.conftest import Load
from tests.settings.probes import Calls, heeds, spied
from tests.trainer.runs import until_end
from tests.trainer.stream import messages_of, write_messages
from tests.trainer.toy import Toy

APP = """\
from dataclasses import replace

from tests.trainer.stream import learnable_app

app = replace(learnable_app(), model="model:Toy")
"""
ODD = (
    "tables.rows_max=200_003", "tables.optimizer=rowwise_adagrad", "tables.rate=0.375", "tables.rates={tags = 0.25}",
    "tables.weight_decay=0.125", "tables.admission_window_ms=50_000_000", "tables.admission_count=2",
    "tables.admission_counts={tags = 3}", "tables.idle_s=50_000.5", "tables.rare_count=3",
    "tables.rare_idle_s=20_000.5", "tables.keys_max=10_007", "tables.expire_steps=5", "trainer.step_rows=77",
    "trainer.staleness_steps=2", "trainer.restart_slack_s=7.5", "trainer.seed=23", "marks.bytes_max=70_000_001",
    "validation.rows_max=1_025", "publisher.row_type=float16", "publisher.promote=false",
    "publisher.publish_interval_s=77_777", "publisher.base_deltas_max=1", "ps.threads=3", "judge.norm_ratio_max=7.5",
)  # fmt: skip


@dataclass
class Seen:
    """What a run of the trainer gave to its parts."""

    folder: AppFolder
    calls: dict[str, Calls] = field(default_factory=dict)
    trainers: list[Any] = field(default_factory=list)
    bases: list[int] = field(default_factory=list)

    def show(self, trainer: Any) -> None:
        if not self.trainers:
            due_in_s = trainer.publisher._due_s - trainer.publisher._clock.monotonic_s()
            assert 77_000 < due_in_s <= 77_777
        self.trainers.append(trainer)


class Seeded(Toy):
    """Notes the seeds that it is built with."""

    seeds: list[int] = []  # noqa: RUF012

    def build(self, features: Any, labels: Any, seed: int) -> Any:
        self.seeds.append(seed)
        return super().build(features, labels, seed)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """One run; the tests only look at what it gave to whom."""
    path = tmp_path_factory.mktemp("training")
    (path / "app.py").write_text(APP)
    (path / "model.py").write_text("from tests.settings.test_training import Seeded as Toy\n")
    found = Seen(load_app(path, [*ODD, f"validation.folder={path}/odd-scores"]))
    write_messages(found.folder, messages_of(found.folder.app, 20))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trainer_setup, "put_graphs", lambda *_: None)  # exporting graphs takes seconds
        patched.setattr(trainer_setup, "_compact", lambda _: found.bases.append)
        for owner, name in (
            (table_set, "native.TableSet"), (marks, "native.Marks"), (sample_range, "StepCutter"),
            (learning_loop, "Stages"), (trainer_setup, "ScoreLog"), (trainer_module, "Rows"), (PsClient, "push"),
            (PsClient, "expire"),
        ):  # fmt: skip
            found.calls[name.rpartition(".")[2]] = spied(patched, owner, name)
        trainer_setup.train(found.folder, threading.Event(), until=until_end, show=found.show)
    return found


@pytest.fixture(autouse=True)
def _loaded(seen: Seen) -> None:
    """So that each test has loaded the settings too, as probes must."""
    load_app(seen.folder.folder, [*ODD, f"validation.folder={seen.folder.folder}/odd-scores"])


@heeds(
    "tables.rows_max", "tables.optimizer", "tables.rate", "tables.rates", "tables.weight_decay",
    "tables.admission_window_ms",
)  # fmt: skip
def test_the_native_tables_have_the_settings(seen: Seen) -> None:
    tables = seen.calls["TableSet"][0][0][0]
    names = [spec.name for spec in seen.folder.app.features.tables]
    for name, table in zip(names, tables, strict=True):
        assert isinstance(table.optimizer, RowwiseAdagrad)
        assert (table.optimizer.weight_decay, table.rows_max) == (0.125, 200_003)
        assert table.optimizer.rate == (0.25 if name == "tags" else 0.375)
        assert table.admission.window_ms == 50_000_000


@heeds("tables.admission_count", "tables.admission_counts")
def test_keys_are_admitted_after_as_many_occurrences_as_the_settings_say(seen: Seen) -> None:
    pushes = [(given[1], {least for _, least in named["admit"]}) for given, named in seen.calls["push"]]
    assert {table: least for table, least in pushes if table == "tags"} == {"tags": {3}}
    assert all(least == {2} for table, least in pushes if table != "tags")


@heeds("tables.idle_s", "tables.rare_count", "tables.rare_idle_s", "tables.keys_max", "tables.expire_steps")
def test_keys_leave_as_the_settings_say(seen: Seen) -> None:
    steps = seen.trainers[0].tally.steps
    assert len(seen.calls["expire"]) == steps // 5 > 0
    for given, _ in seen.calls["expire"]:
        for expiry in given[1].values():
            assert (expiry.idle_ms, expiry.rare_idle_ms) == (50_000_500, 20_000_500)
            assert (expiry.count_min, expiry.keys_max) == (3, 10_007)


@pytest.mark.parametrize("change", ["tables.idle_s=50", "tables.rare_count=3", "tables.keys_max=9"])
def test_keys_leave_also_if_one_of_the_settings_alone_says_so(learnable: Load, change: str) -> None:
    client: Any = SimpleNamespace(dims={"main": 8})
    settings = learnable(change, "tables.rare_idle_s=20", "tables.expire_steps=5").settings.tables
    assert ExpirySchedule(client, settings).is_due(5)
    assert not ExpirySchedule(client, learnable().settings.tables).is_due(5)


@heeds("ps.threads")
def test_the_tables_of_a_trainer_without_shards_use_the_threads_of_the_setting(seen: Seen) -> None:
    link = seen.trainers[0]._client._link
    assert link._threads == 3


@heeds("trainer.step_rows", "trainer.restart_slack_s")
def test_steps_are_cut_as_the_settings_say(seen: Seen) -> None:
    given, _ = seen.calls["StepCutter"][0]
    longest_s = max(group.window_s for group in seen.folder.app.groups)
    assert (given[1], given[3]) == (77, round((longest_s + 7.5) * 1_000))
    assert 77 in [given[2] for given, _ in seen.calls["Rows"]]


@heeds("trainer.staleness_steps")
def test_rows_are_pulled_ahead_by_as_many_steps_as_the_setting_says(seen: Seen) -> None:
    assert seen.calls["Stages"][0][1]["staleness"] == 2


@heeds("trainer.seed")
def test_dense_weights_begin_with_the_seed_of_the_setting(seen: Seen) -> None:
    assert set(Seeded.seeds) == {23}


@heeds("marks.bytes_max")
def test_marks_have_no_more_bytes_than_the_setting(seen: Seen) -> None:
    assert {given[-1] for given, _ in seen.calls["Marks"]} == {70_000_001}


@heeds("validation.rows_max")
def test_no_more_predictions_are_held_than_the_setting_says(seen: Seen) -> None:
    assert seen.trainers[0].tally.rows * len(seen.folder.app.labels) > 1_025
    assert 0 < seen.trainers[0]._validation._validation.held_rows <= 1_025


@heeds("validation.folder")
def test_scores_are_written_into_the_folder_of_the_setting(seen: Seen) -> None:
    assert seen.calls["ScoreLog"][0][0][0] == Path(seen.folder.folder, "odd-scores")


@heeds("publisher.row_type", "publisher.promote", "publisher.base_deltas_max", "publisher.publish_interval_s")
def test_versions_of_a_run_are_published_as_the_settings_say(seen: Seen) -> None:
    store, model = open_store(seen.folder.store_url), seen.folder.app.name
    chain = Chain.find(store, model)
    assert {table.row_type for table in chain.manifest.tables} == {"float16"}
    assert PointerLog(store, model).newest().active is None
    assert seen.bases == [chain.version]


@heeds("judge.norm_ratio_max")
def test_the_judge_of_a_run_has_the_settings(seen: Seen) -> None:
    store, newest = open_store(seen.folder.store_url), seen.trainers[0].publisher.step.known[-1]
    verdict = read_verdict(store, History(store, seen.folder.app.name).folder(newest.ref))
    assert verdict is not None
    (norms,) = [finding for finding in verdict.findings if finding.check == "norms"]
    assert norms.said.endswith("within a factor of 7.5")
