"""The trainers' samples: a function of the seed, of the shape they claim, with something in them to learn."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.trainer_samples import (
    DENSE_COLUMNS,
    HISTORY_IDS_MAX,
    ITEM_SLOTS,
    SLOTS,
    STEP_SAMPLES,
    USER_SLOTS,
    StepSamples,
    Workload,
)

__all__: list[str] = []

_KEYS = 20_000
_STEPS = Workload(_KEYS, 3).steps(6)


def _all(step: StepSamples) -> list[NDArray[np.generic]]:
    return [*vars(step).values()]


def test_twenty_slots_are_measured() -> None:
    assert SLOTS == USER_SLOTS + 1 + ITEM_SLOTS == 20


@pytest.mark.parametrize("step", _STEPS)
def test_a_step_has_the_shapes_it_claims(step: StepSamples) -> None:
    assert step.user_ids.shape == (step.requests, USER_SLOTS)
    assert step.item_ids.shape == (STEP_SAMPLES, ITEM_SLOTS)
    assert step.dense.shape == (STEP_SAMPLES, DENSE_COLUMNS)
    assert step.history_ids.shape == step.history_request.shape
    assert step.request_index.shape == step.label.shape == step.logit.shape == (STEP_SAMPLES,)
    assert step.dense.dtype == step.label.dtype == np.float32
    assert set(step.label.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("step", _STEPS)
def test_every_request_has_items_and_a_history(step: StepSamples) -> None:
    for index in (step.request_index, step.history_request):
        assert (np.diff(index) >= 0).all()
        assert np.array_equal(np.unique(index), np.arange(step.requests))
    assert np.bincount(step.history_request).max() <= HISTORY_IDS_MAX


def test_a_request_has_eight_items_and_five_ids_of_history_in_the_mean() -> None:
    requests = sum(step.requests for step in _STEPS)
    assert abs(len(_STEPS) * STEP_SAMPLES / requests - 8) < 0.3
    assert abs(sum(len(step.history_ids) for step in _STEPS) / requests - 5) < 0.2


def test_slots_share_no_ids_and_have_none_but_the_workloads() -> None:
    columns = [np.concatenate([step.user_ids for step in _STEPS]), np.concatenate([step.item_ids for step in _STEPS])]
    slots = [np.unique(column) for block in columns for column in block.T]
    slots.append(np.unique(np.concatenate([step.history_ids for step in _STEPS])))
    together = np.concatenate(slots)
    assert len(np.unique(together)) == len(together)
    assert np.isin(together, Workload(_KEYS, 3).ids(0, _KEYS)).all()


def test_ids_come_as_zipfs_law_says_in_every_slot() -> None:
    law = np.arange(1.0, _KEYS / SLOTS + 1) ** -1.05
    items = np.concatenate([step.item_ids for step in _STEPS])
    for column in items.T:
        hottest = np.unique(column, return_counts=True)[1].max() / len(column)
        assert abs(hottest / (1 / law.sum()) - 1) < 0.1


def test_a_seed_says_what_the_samples_are_and_a_longer_run_begins_alike() -> None:
    for step, again in zip(_STEPS[:2], Workload(_KEYS, 3).steps(2), strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(_all(step), _all(again), strict=True))
    other = Workload(_KEYS, 4).steps(1)[0]
    assert not np.isin(other.item_ids, _STEPS[0].item_ids).any()


def test_steps_differ() -> None:
    assert not np.array_equal(_STEPS[0].item_ids, _STEPS[1].item_ids)
    assert not np.array_equal(_STEPS[0].dense, _STEPS[1].dense)


def test_labels_follow_the_hidden_model() -> None:
    label, logit = (np.concatenate([getattr(step, name) for step in _STEPS]) for name in ("label", "logit"))
    chance = 1 / (1 + np.exp(-logit))
    for low in np.arange(0.0, 1.0, 0.1):
        inside = (chance >= low) & (chance < low + 0.1)
        assert abs(label[inside].mean() - chance[inside].mean()) < 4 * 0.5 / np.sqrt(inside.sum())
    share = label.mean()
    blind = -(share * np.log(share) + (1 - share) * np.log(1 - share))
    assert np.mean([step.floor_log_loss for step in _STEPS]) < blind - 0.1


def test_ids_say_what_the_label_is_like() -> None:
    """An id's items do not look alike: what it adds is found again from labels alone."""
    items = np.concatenate([step.item_ids[:, 0] for step in _STEPS])
    label = np.concatenate([step.label for step in _STEPS])
    logit = np.concatenate([step.logit for step in _STEPS])
    hot = [id_ for id_, count in zip(*np.unique(items, return_counts=True), strict=True) if count > 300]
    assert len(hot) > 5
    found = [label[items == id_].mean() for id_ in hot]
    expected = [(1 / (1 + np.exp(-logit[items == id_]))).mean() for id_ in hot]
    assert np.corrcoef(found, expected)[0, 1] > 0.8


@pytest.mark.parametrize("keys_count", [0, -20, 19, 1_001])
def test_a_count_that_slots_cannot_share_is_refused(keys_count: int) -> None:
    with pytest.raises(ValueError, match=f"{keys_count} ids cannot be divided evenly"):
        Workload(keys_count, 1)
