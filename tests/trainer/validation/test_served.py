"""Figures of what nodes answered: those of a model that predicts their answers, over the rows that they scored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from streamlearn.publisher.logit_scores import logits_of
from streamlearn.samples import SampleBatch, SegmentColumns
from streamlearn.settings import ValidationSettings
from streamlearn.trainer.validation import Predicted, ProgressiveValidation, WindowScore
from tests.trainer.runs import run
from tests.trainer.stream import learnable_folder, messages_of, write_messages
from tests.trainer.validation.predictions import TEXTS, app_of
from tests.trainer.validation.test_numbers import app_of as app_of_numbers

SETTINGS = ValidationSettings(windows_s=[10, 60])
ROWS, END_MS = 600, 60_000


def predicted(app: Any, seed: int = 0) -> Predicted:
    """Rows over a minute. A node scored two thirds of them."""
    rng = np.random.default_rng(seed)
    labels = len(app.labels)
    shape = (ROWS, labels)
    every = np.full(ROWS, (1 << labels) - 1, np.uint32)
    served = rng.uniform(0.01, 0.99, shape).astype(np.float32)
    served[rng.random(ROWS) < 1 / 3] = np.nan
    has_numbers = any(label.number is not None for label in app.labels)
    return Predicted(
        identity=np.arange(ROWS, dtype=np.uint64),
        event_time_ms=np.sort(rng.integers(0, END_MS, ROWS)),
        logits=rng.normal(0, 1, shape).astype(np.float32),
        learn=every,
        correct=np.zeros(ROWS, np.uint32),
        positive=rng.integers(0, 1 << labels, ROWS).astype(np.uint32),
        rates=rng.uniform(0.2, 1, shape).astype(np.float32),
        weights=rng.uniform(0, 2, shape).astype(np.float32),
        segments=tuple(
            SegmentColumns(one.name, TEXTS, rng.integers(0, len(TEXTS), ROWS).astype(np.int32))
            for one in app.features.segments
        ),
        numbers=rng.uniform(0, 5, shape).astype(np.float32) if has_numbers else None,
        served=served,
    )


def scores_of(app: Any, rows: Predicted) -> dict[tuple[Any, ...], WindowScore]:
    validation = ProgressiveValidation(app, SETTINGS)
    validation.add(rows)
    return {
        (one.label, one.begin_ms, one.end_ms, one.segment, one.text): one for one in validation.close(END_MS * 1_000)
    }


@pytest.mark.parametrize("app", [app_of(), app_of_numbers()], ids=["positive", "numbers"])
def test_they_are_those_of_a_model_that_predicts_what_nodes_answered(app: Any) -> None:
    rows = predicted(app)
    assert rows.served is not None
    is_served = ~np.isnan(rows.served[:, 0])
    answers = rows.served[is_served]
    logits = [
        answers[:, at] if one.number is not None else logits_of(answers[:, at]) for at, one in enumerate(app.labels)
    ]
    segments = tuple(replace(one, codes=one.codes[is_served]) for one in rows.segments)
    columns: Any = {name: one[is_served] for name, one in vars(rows).items() if isinstance(one, np.ndarray)}
    columns |= {"logits": np.stack(logits, axis=1), "served": None, "segments": segments}
    model = replace(rows, **columns)
    found, expected = scores_of(app, rows), scores_of(app, model)
    assert len(expected) >= 7 * len(app.labels)
    for key, score in found.items():
        one = expected.get(key)
        assert score.served_rows == (0 if one is None else one.rows) < score.rows
        if one is not None:
            assert (score.served_auc, score.served_log_loss, score.served_mae) == (one.auc, one.log_loss, one.mae)
    # The model's own figures do not depend on the answers.
    assert {key: strip(one) for key, one in found.items()} == scores_of(app, replace(rows, served=None))


def strip(score: WindowScore) -> WindowScore:
    return msgspec.structs.replace(score, served_rows=0, served_auc=None, served_log_loss=None, served_mae=None)


def test_a_trainer_logs_how_good_the_answers_of_nodes_were(tmp_path: Path) -> None:
    folder = learnable_folder(tmp_path, {"trainer": {"step_rows": 64}, "validation": {"windows_s": [10, 60]}})
    messages = messages_of(folder.app, 260)
    answered = [(partition, answers(batch, number % 2 == 0)) for number, (partition, batch) in enumerate(messages)]
    write_messages(folder, answered)
    found: list[WindowScore] = []
    run(folder, on_scores=found.extend)
    bought = [one for one in found if one.label == "bought" and not one.segment and one.served_rows]
    assert {one.window_s for one in bought} == {10, 60}
    for one in bought:
        assert one.served_rows < one.rows
        assert one.served_log_loss == pytest.approx(-np.log(0.75), rel=1e-5)
        assert one.standard_error is not None
        assert 0 < one.standard_error < 0.2


def answers(batch: SampleBatch, is_served: bool) -> SampleBatch:
    """Samples whose labels a node predicted with 0.75 for what happened; if it did."""
    labels = [
        replace(
            one, served_score=np.where(one.value == 1, 0.75, 0.25).astype(np.float32) if is_served else one.served_score
        )
        for one in batch.labels
    ]
    return replace(batch, labels=tuple(labels))
