"""What a trainer writes beside rows: golden requests, and what its judge is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.ps import Epoch
from streamlearn.samples import SampleCodec, read_golden
from streamlearn.trainer.intake.recent import RecentSamples
from streamlearn.trainer.learner import Learner, Packed
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.step import Piece
from streamlearn.trainer.version_scores import SCORED_ROWS, VersionScorer
from streamlearn.versions import Chain
from streamlearn.versions.format.loading import load_bytes
from streamlearn.versions.format.verdict import read_verdict
from tests.trainer.runs import local_client, run, store_of
from tests.trainer.stream import STEP_MS, T_MS, learnable_app, learnable_folder, messages_of, write_messages
from tests.trainer.toy import Toy


def test_golden_requests_score_as_the_version_does_wherever_it_is_loaded(tmp_path: Path) -> None:
    folder = learnable_folder(tmp_path, {"trainer": {"step_rows": 64}})
    write_messages(folder, messages_of(folder.app, 12))
    run(folder)
    store = store_of(folder)
    chain = Chain.find(store, folder.app.name)
    codec = SampleCodec(folder.app, folder.settings.samples)
    batch, logits = read_golden(codec, load_bytes(store, chain.head, "golden"))
    assert 0 < len(np.unique(batch.request_index)) <= 32
    with local_client(folder) as client:
        client.restore(Epoch(9), chain.ref)
        rows = Rows(folder.app, client, SCORED_ROWS)
        scorer = VersionScorer(folder.app.name, store, Learner(folder.app, Toy(), folder.settings.trainer), rows)
        found = scorer.score(chain.version, batch)
    np.testing.assert_allclose(found, logits, rtol=0, atol=1e-6)
    assert np.ptp(found) > 0.01


def test_the_judge_compares_versions_on_samples_whose_windows_are_closed(tmp_path: Path) -> None:
    settings = {
        "trainer": {"step_rows": 64, "rate": 0.01},
        "judge": {"scored_rows_min": 50, "norm_ratio_max": 0},
        "publisher": {"publish_interval_s": 0.001},
    }
    folder = learnable_folder(tmp_path, settings)
    # The longest window is two minutes: a message is of a second.
    write_messages(folder, messages_of(folder.app, 160, 20))
    run(folder)
    store = store_of(folder)
    newest = Chain.find(store, folder.app.name)
    verdict = read_verdict(store, newest.head.folder)
    assert verdict is not None
    scores = next(one for one in verdict.findings if one.check == "scores")
    assert {"auc.click", "active.auc.click"} <= set(scores.values), scores.said
    assert 0.5 < scores.values["auc.click"] < 1


def test_the_judge_scores_in_batches_of_one_size_however_small_steps_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "trainer": {"step_rows": 4},
        "judge": {"scored_rows_min": 50, "norm_ratio_max": 0},
        "publisher": {"publish_interval_s": 3_600},
    }
    folder = learnable_folder(tmp_path, settings)
    # The first version is active when the second is judged.
    write_messages(folder, messages_of(folder.app, 160, 4))
    scored: list[int] = []
    score = Learner.score

    def counting(self: Learner, packed: Packed, weights: Any = None) -> Any:
        scored.append(packed.rows)
        return score(self, packed, weights)

    monkeypatch.setattr(Learner, "score", counting)
    run(folder)
    verdict = read_verdict(store_of(folder), Chain.find(store_of(folder), folder.app.name).head.folder)
    assert verdict is not None
    assert "auc.click" in next(one for one in verdict.findings if one.check == "scores").values
    # Golden requests are of the last step; all other rows are scored at once, by the version and by the active one.
    judged = [rows for rows in scored if rows > 4]
    assert len(judged) == 2
    assert judged[0] > 100


def test_recent_rows_end_with_the_labels_their_windows_close_with() -> None:
    app = learnable_app()
    batch = messages_of(app, 1, 40)[0][1]
    rows = np.arange(len(batch))
    none = np.zeros(len(batch), np.uint32)
    recent = RecentSamples(app, 1_000)
    recent.add([Piece(batch, rows, none + np.uint32(3), none)], T_MS)
    assert recent.closed() == []
    # The windows of clicks are closed after a minute, those of purchases are not.
    some = np.flatnonzero(batch.labels[0].value == 0)[:5]
    recent.add([Piece(batch, some, none[some], none[some] + np.uint32(1))], T_MS + 61 * STEP_MS)
    (closed,) = recent.closed()
    click, bought = closed.labels
    expected = batch.labels[0].value.copy()
    expected[some] = 1
    np.testing.assert_array_equal(click.value, expected)
    assert click.settles.all()
    assert not bought.settles.any()
    recent.add([], T_MS + 200 * STEP_MS)
    (closed,) = recent.closed()
    np.testing.assert_array_equal(closed.labels[1].value, batch.labels[1].value)


def test_recent_rows_are_a_fair_share_of_requests_where_there_are_too_many() -> None:
    app = learnable_app()
    recent = RecentSamples(app, 400)
    sent = 0
    for _, batch in messages_of(app, 60, 40):
        rows = np.arange(len(batch))
        recent.add([Piece(batch, rows, np.full(len(rows), 3, np.uint32), np.zeros(len(rows), np.uint32))], T_MS)
        sent += len(rows)
        assert len(recent) <= 400
    assert sent > 2_000
    assert len(recent) > 100
    recent.add([], T_MS + 3_600_000)
    closed = recent.closed()
    assert sum(map(len, closed)) == len(recent)
    # From the oldest message to the newest.
    shown = np.concatenate([one.requests.event_time_ms for one in closed])
    assert shown.min() < T_MS + 10 * STEP_MS
    assert shown.max() > T_MS + 45 * STEP_MS


def test_rows_that_were_dropped_are_not_judged_by() -> None:
    app = learnable_app()
    batch = messages_of(app, 1, 40)[0][1]
    rows = np.arange(len(batch))
    learn = np.where(rows % 2 == 0, 1, 0).astype(np.uint32)
    recent = RecentSamples(app, 1_000)
    recent.add([Piece(batch, rows, learn, np.zeros(len(rows), np.uint32))], T_MS + 3_600_000)
    (closed,) = recent.closed()
    assert len(closed) == int(learn.sum())
    assert not closed.labels[1].settles.any()


def test_bases_are_asked_for_while_training_goes_on(tmp_path: Path) -> None:
    publisher = {"publish_interval_s": 0.001, "base_deltas_max": 1}
    folder = learnable_folder(tmp_path, {"trainer": {"step_rows": 32}, "publisher": publisher})
    write_messages(folder, messages_of(folder.app, 20))
    asked: list[int] = []
    report = run(folder, compact=asked.append)
    assert asked
    assert all(1 < version <= report.version for version in asked)
