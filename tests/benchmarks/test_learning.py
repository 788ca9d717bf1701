"""The trial of a trainer: one that learns has its figures, and one that does not, or that cheats, has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.peers.answer import Order, Wrong
from benchmarks.peers.training_trial import HISTORY_PADDED, REQUESTS_PADDED, WARM_STEPS, learn, padded, steps_of
from benchmarks.trainer_samples import STEP_SAMPLES, StepSamples, Workload

__all__: list[str] = []

_ORDER = Order("fake", 20_000, ("learn",), window_steps=2)


class _Learner:
    """A logistic regression with a weight an item id, in the order of ids."""

    def __init__(self) -> None:
        self._ids, self._weights = np.zeros(0, np.int64), np.zeros(0)
        self._bias = 0.0
        self._dense = np.zeros(8)
        self.fed = 0

    def feed(self, steps: Sequence[StepSamples]) -> Iterator[Any]:
        for step in steps:
            self.fed += 1
            yield step

    def step(self, samples: Any) -> float:
        self._put(np.concatenate([samples.user_ids.ravel(), samples.history_ids, samples.item_ids.ravel()]))
        at = np.searchsorted(self._ids, samples.item_ids)
        logit = self._weights[at].sum(axis=1) + samples.dense @ self._dense + self._bias
        apart = 1 / (1 + np.exp(-logit)) - samples.label
        gradients = np.bincount(at.ravel(), np.repeat(apart, samples.item_ids.shape[1]), len(self._ids))
        self._weights -= 2.0 * gradients / STEP_SAMPLES
        self._dense -= 0.5 * samples.dense.T @ apart / STEP_SAMPLES
        self._bias -= 0.5 * float(apart.mean())
        return float(np.logaddexp(0, np.where(samples.label > 0, -logit, logit)).mean())

    def insert(self, ids: NDArray[np.int64]) -> None:
        self._put(ids)

    def _put(self, ids: NDArray[np.int64]) -> None:
        new = np.setdiff1d(ids, self._ids)
        if len(new):
            at = np.searchsorted(self._ids, new)
            self._ids, self._weights = np.insert(self._ids, at, new), np.insert(self._weights, at, 0.0)

    def count(self) -> int | None:
        return len(self._ids)


class _Idle(_Learner):
    """Learns nothing."""

    def step(self, samples: Any) -> float:
        super().step(samples)
        return 0.65


class _Exploding(_Learner):
    def step(self, samples: Any) -> float:
        return super().step(samples) if self.fed < 10 else float("nan")


class _Seeing(_Learner):
    """Reports a loss it has after it saw the labels."""

    def step(self, samples: Any) -> float:
        return super().step(samples) / self.fed


class _Forgetful(_Learner):
    def count(self) -> int | None:
        return len(self._ids) - 1


class _Static(_Learner):
    def insert(self, ids: NDArray[np.int64]) -> None:
        pass

    def count(self) -> int | None:
        return None


class _Short(_Learner):
    """Feeds less than it was given."""

    def feed(self, steps: Sequence[StepSamples]) -> Iterator[Any]:
        return super().feed(steps[:-1])


@pytest.mark.parametrize(("make", "filled"), [(_Learner, True), (_Learner, False), (_Static, True)])
def test_who_learns_has_figures(make: type[_Learner], filled: bool) -> None:
    made: list[_Learner] = []

    def kept() -> _Learner:
        made.append(make())
        return made[-1]

    found = learn(kept, _ORDER, "learn", filled=filled)
    rates = {"learn_samples_per_s", "learn_samples_per_s_best", "learn_cpu_us_per_sample", "learn_step_worst_ms"}
    losses = {"learn_log_loss_begin", "learn_log_loss_end"}
    assert set(found) == rates | losses | {"learn_bytes", "learn_bytes_peak"}
    assert all(found[name] > 0 for name in rates)
    assert found["learn_samples_per_s"] <= found["learn_samples_per_s_best"]
    assert found["learn_log_loss_end"] < found["learn_log_loss_begin"] < 0.75
    assert made[0].fed == WARM_STEPS + _ORDER.windows * _ORDER.window_steps == steps_of(_ORDER)


def test_a_turn_is_taken_before_each_window_and_after_the_last_one() -> None:
    told: list[dict[str, float]] = []
    fed: list[int] = []
    made = _Learner()

    def turn(done: Mapping[str, float]) -> None:
        told.append(dict(done))
        fed.append(made.fed)

    order = Order("fake", 20_000, ("learn",), window_steps=2, windows=3, in_turns=True)
    found = learn(lambda: made, order, "learn", filled=True, turn=turn)
    rates = [window["learn_samples_per_s"] for window in told[1:]]
    assert told[0] == {}
    assert (sorted(rates)[1], max(rates)) == (found["learn_samples_per_s"], found["learn_samples_per_s_best"])
    # Before each window some steps are learned that do not count.
    assert np.diff(fed).tolist() == [10, 10, 10]
    assert (fed[0], fed[-1]) == (WARM_STEPS, steps_of(order))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (_Idle, "nothing was learned"),
        (_Exploding, "was not finite"),
        (_Seeing, "the labels were seen"),
        (_Forgetful, r"19999 ids are stored, expected 20000"),
        (_Short, "1 of 2 steps arrived"),
    ],
)
def test_who_does_not_learn_or_cheats_has_none(make: type[_Learner], match: str) -> None:
    with pytest.raises(Wrong, match=match):
        learn(make, _ORDER, "learn", filled=True)


def test_who_grows_is_asked_for_the_ids_it_met() -> None:
    with pytest.raises(Wrong, match="ids are stored, expected"):
        learn(_Forgetful, _ORDER, "grow", filled=False)


def test_padded_steps_say_what_the_steps_say() -> None:
    steps = Workload(20_000, 1).steps(3)
    whole = padded(steps)
    assert whole.user_ids.shape[:2] == (3, REQUESTS_PADDED)
    assert whole.history_ids.shape == whole.history_request.shape == (3, HISTORY_PADDED)
    for index, step in enumerate(steps):
        ids = len(step.history_ids)
        assert np.array_equal(whole.user_ids[index, : step.requests], step.user_ids)
        assert np.array_equal(whole.history_ids[index, :ids], step.history_ids)
        assert np.array_equal(whole.history_request[index, :ids], step.history_request)
        assert np.array_equal(whole.item_ids[index], step.item_ids)
        # What fills up belongs to a request no item asks for, and adds no id.
        assert (whole.history_request[index, ids:] > whole.request_index[index].max()).all()
        assert np.isin(whole.user_ids[index], step.user_ids).all()
        assert np.isin(whole.history_ids[index], step.history_ids).all()


def test_a_step_that_does_not_fit_is_refused() -> None:
    step = Workload(20_000, 1).steps(1)[0]
    many = np.repeat(step.user_ids, 2, axis=0)
    with pytest.raises(Wrong, match=f"{len(many)} requests and"):
        padded([StepSamples(**{**vars(step), "user_ids": many})])
