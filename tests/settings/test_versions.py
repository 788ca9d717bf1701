"""Settings of the store and the registry, of signatures, of the publisher, its judge and retention."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.apps import AppFolder
from streamlearn.cli.model.model_options import open_model
from streamlearn.cli.options import Place
from streamlearn.errors import VersionDefect
from streamlearn.publisher import Judge
from streamlearn.samples import SampleBatch
from streamlearn.versions import Chain, Finding, Known, PointerLog, Store, VersionRef, open_store
from tests.publisher.samples import samples_of
from tests.publisher.training import MODEL, Training
from tests.settings.conftest import Load
from tests.settings.probes import heeds
from tests.versions.history import Trainer
from tests.versions.test_signatures import Keys


@heeds("versions.store", "registry.url")
def test_store_and_registry_are_where_the_settings_say(small: Load, tmp_path: Path) -> None:
    odd = (f"versions.store=file://{tmp_path}/odd", f"registry.url=sqlite://{tmp_path}/odd.db")
    folder = small(*odd)
    assert (folder.store_url, folder.registry_url) == tuple(change.partition("=")[2] for change in odd)
    model = open_model(None, Place(app=folder.folder, set_=list(odd)))
    model.store.create("ctr/there", b"1")
    assert list((tmp_path / "odd" / "ctr").iterdir())
    assert model.registry is not None
    with model.registry as registry:
        assert registry.nodes() == []
    assert (tmp_path / "odd.db").exists()


@heeds("versions.signing_key", "versions.trusted_keys")
def test_versions_are_signed_with_the_key_and_only_trusted_ones_are_read(small: Load, tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")

    def store_of(*changes: str) -> Store:
        folder = small(f"versions.store=file://{tmp_path}/store", *changes)
        return open_store(folder.store_url, settings=folder.settings.versions)

    def newest(store: Store) -> int:
        return Chain.find(store, MODEL).head.manifest.version

    signs = f"versions.signing_key={keys.private(1)}"
    trusts, trusts_another = (f"versions.trusted_keys={keys.public(number)}" for number in (1, 2))
    Trainer(store_of(signs, trusts)).story([1])
    assert newest(store_of(trusts)) == 1
    with pytest.raises(VersionDefect, match="key"):
        newest(store_of(trusts_another))


@heeds("retention.keep_versions_min", "retention.keep_s")
def test_what_is_old_is_told_by_the_settings(small: Load, verb: Callable[..., Any], tmp_path: Path) -> None:
    folder = small()
    trainer = Trainer(open_store(str(tmp_path / "store")))
    trainer.base(trainer.story([1, 2, 3, 4])[-1])
    trainer.story([5, 6])

    def floor(*changes: str) -> int:
        small(*changes)
        sets = [word for change in (f"versions.store={tmp_path}/store", *changes) for word in ("--set", change)]
        said = verb("gc", MODEL, "--app", folder.folder, "--json", *sets)
        found: int = json.loads(said.stdout)["floor"]
        return found

    assert floor() == 1
    assert floor("retention.keep_versions_min=2") == 5
    assert floor("retention.keep_versions_min=2", "retention.keep_s=31_000_000_000") == 1


def training_of(folder: AppFolder, **given: Any) -> Training:
    """A trainer with a publisher, made of the settings as the product's trainer makes it."""
    store = open_store(folder.store_url, settings=folder.settings.versions)
    return Training(store, folder.settings.publisher, judge=Judge(folder.settings.judge), **given).begin()


@heeds("publisher.publish_interval_s")
def test_a_version_is_due_once_the_interval_has_passed(small: Load) -> None:
    with training_of(small("publisher.publish_interval_s=33.5")) as training:
        training.step()
        training.clock.sleep(33)
        assert not training.publisher.is_due
        training.clock.sleep(0.5)
        assert training.publisher.is_due


@heeds("publisher.promote")
def test_without_promotion_no_version_is_served(small: Load) -> None:
    with training_of(small("publisher.promote=false", "publisher.publish_interval_s=10")) as training:
        training.publish()
        assert training.publisher.step is not None
        assert [known.outcome for known in training.publisher.step.known] == ["unscored", "unscored"]
        assert PointerLog(training.store, MODEL).newest().active is None


@heeds("judge.unscored")
def test_an_unscored_version_is_not_served_if_the_setting_says_so(small: Load) -> None:
    folder = small("judge.unscored=hold", "publisher.publish_interval_s=10")
    with training_of(folder) as training:
        training.publish()
        assert PointerLog(training.store, MODEL).newest().active_version == 1


@heeds("publisher.on_reject")
def test_a_rejected_version_takes_training_back_if_the_setting_says_so(small: Load) -> None:
    with training_of(small("publisher.on_reject=rewind", "publisher.publish_interval_s=10")) as training:
        training.publish()
        training.dense_of = lambda _: np.full(8, np.nan, np.float32)
        training.publish()
        assert [request.to.version for request in training.publisher.requests] == [2]


@heeds("publisher.base_deltas_max")
def test_a_base_is_written_after_as_many_deltas_as_the_setting_says(small: Load) -> None:
    bases: list[int] = []
    folder = small("publisher.base_deltas_max=2", "publisher.publish_interval_s=10")
    with training_of(folder, compact=bases.append) as training:
        training.publish()
        training.publisher._bases.join()
        assert bases == []
        training.publish()
        training.publisher._bases.join()
        assert bases == [3]


def version_of(number: int, **metrics: float) -> Known:
    ref = VersionRef(version=number, run=1, sha256="0" * 64)
    return Known(ref=ref, kind="delta", parent=ref, metrics=metrics, outcome="passed")


class Awful:
    """Version 1 scores well. Version 2 ranks backwards, and predicts that all is positive."""

    def score(self, version: int, batch: SampleBatch) -> Any:
        truth = np.where(batch.labels[0].value, 1.0, -1.0)
        return (truth if version == 1 else 9 - truth).astype(np.float32)[:, None]


def finding_of(folder: AppFolder, check: str, **metrics: float) -> Finding:
    judge = Judge(folder.settings.judge, scorer=Awful(), samples=lambda: [samples_of(200)])
    before = version_of(1, **dict.fromkeys(metrics, 1.0))
    verdict = judge.judge(judge.case(version_of(2, **metrics), active=before, earlier=[before]))
    return next(finding for finding in verdict.findings if finding.check == check)


@heeds("judge.norm_ratio_max")
def test_a_norm_may_change_by_the_factor_of_the_setting(small: Load) -> None:
    metric = {"rows.main.rms": 1.6}
    assert finding_of(small(), "norms", **metric).is_ok
    assert not finding_of(small("judge.norm_ratio_max=1.5"), "norms", **metric).is_ok


@heeds(
    "judge.scored_rows_min", "judge.auc_drop_ratio_max", "judge.log_loss_rise_ratio_max", "judge.calibration_ratio_max"
)
def test_scores_may_be_worse_by_what_the_settings_say_once_there_are_enough_samples(small: Load) -> None:
    few = "judge.scored_rows_min=77"
    off = {
        "judge.auc_drop_ratio_max=0": "AUC fell", "judge.log_loss_rise_ratio_max=0": "log loss rose",
        "judge.calibration_ratio_max=0": "calibration is",
    }  # fmt: skip
    assert "at least 1000 are required" in finding_of(small(), "scores").said
    all_on = finding_of(small(few), "scores")
    assert not all_on.is_ok
    assert all(text in all_on.said for text in off.values())
    for change, text in off.items():
        assert text not in finding_of(small(few, change), "scores").said
    assert finding_of(small(few, *off), "scores").is_ok
