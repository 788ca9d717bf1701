"""The trainer's benchmark: sides take turns, rounds make medians, and ratios say which way is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from benchmarks.trainer import compared, growth, named, taken_in_turn
from streamlearn.errors import ServiceError

__all__: list[str] = []


class _Side:
    """Measures windows with these rates, and fails where there is none."""

    def __init__(self, name: str, rates: Sequence[float | None], asked: list[str]) -> None:
        self._name, self._rates, self._asked = name, iter(rates), asked
        self._is_ready = False

    def turn(self) -> dict[str, float]:
        self._asked.append(self._name)
        if not self._is_ready:
            self._is_ready = True
            return {}
        rate = next(self._rates)
        if rate is None:
            message = "it hung"
            raise ServiceError(message, help="look at it")
        return {"learn_samples_per_s": rate}

    def end(self) -> dict[str, float]:
        self._asked.append(f"{self._name} ends")
        return {"learn_bytes": 7.0}

    def close(self) -> None:
        self._asked.append(f"{self._name} is closed")


def _taken(rates: Mapping[str, Sequence[float | None]], windows: int) -> tuple[Any, list[str], list[str]]:
    asked: list[str] = []
    notes: list[str] = []
    sides = {name: partial(_Side, name, of, asked) for name, of in rates.items()}
    return taken_in_turn(sides, windows, notes.append), asked, notes


def test_sides_take_turns_and_ratios_are_medians_of_the_windows_ratios() -> None:
    rates = {"streamlearn": [10.0, 2.0, 12.0], "peer": [5.0, 2.0, 4.0]}
    (figures, ratios), asked, _ = _taken(rates, 3)
    assert asked[:8] == ["streamlearn", "peer"] * 4
    assert set(asked[8:10]) == {"streamlearn ends", "peer ends"}
    assert figures == {"streamlearn": {"learn_bytes": 7.0}, "peer": {"learn_bytes": 7.0}}
    assert ratios == {"learn_samples_per_s_to_peer": 2.0}


def test_a_side_that_fails_is_noted_and_leaves_the_others_alone() -> None:
    rates: dict[str, list[float | None]] = {"streamlearn": [10.0, 10.0], "peer": [5.0, 5.0], "other": [1.0, None]}
    (figures, ratios), asked, notes = _taken(rates, 2)
    assert set(figures) == {"streamlearn", "peer"}
    assert ratios == {"learn_samples_per_s_to_peer": 2.0}
    assert any("other is left out: it hung" in note for note in notes)
    assert sum("is closed" in one for one in asked) == 3
    (figures, ratios), _, _ = _taken({"streamlearn": [None], "peer": [1.0]}, 1)
    assert (set(figures), ratios) == ({"peer"}, {})


@pytest.mark.parametrize(
    ("figure", "ours", "theirs", "ratio"),
    [
        ("learn_samples_per_s", 300.0, 100.0, 3.0),
        ("learn_cpu_us_per_sample", 5.0, 10.0, 2.0),
        ("learn_step_worst_ms", 4.0, 2.0, 0.5),
        ("grow_bytes", 1e9, 3e9, 3.0),
        ("grow_bytes_peak", 2e9, 3e9, 1.5),
    ],
)
def test_above_one_ours_is_better(figure: str, ours: float, theirs: float, ratio: float) -> None:
    found = {"streamlearn": {figure: ours}, "peer": {figure: theirs}}
    assert compared("streamlearn", found) == {f"{figure}_to_peer": pytest.approx(ratio)}


def test_there_is_no_ratio_of_losses_of_nothing_or_to_oneself() -> None:
    found = {
        "streamlearn": {"learn_log_loss_end": 0.5, "learn_bytes": 0.0, "only_ours_per_s": 1.0},
        "peer": {"learn_log_loss_end": 0.5, "learn_bytes": 1.0},
    }
    assert compared("streamlearn", found) == {}
    assert compared("streamlearn", {"peer": {"learn_samples_per_s": 1.0}}) == {}


def test_ratios_with_aims_go_by_the_names_of_the_aims() -> None:
    found = {
        "streamlearn": {"learn_samples_per_s": 6.0, "learn_bytes": 2.0, "to_dense_only": 0.8, "cpu_to_dense_only": 0.7},
        "keras_static": {"learn_samples_per_s": 3.0, "learn_bytes": 6.0},
        "keras_plain": {"learn_samples_per_s": 2.0},
        "tfra_dynamic": {"learn_samples_per_s": 1.5},
    }
    paired = {"learn_samples_per_s_to_keras_static": 2.5, "learn_samples_per_s_to_tfra_stream": 1.5}
    assert named(found, paired) == {
        "ratio_keras_static": 2.5,
        "ratio_tfra_stream": 1.5,
        "ratio_keras_plain": 3.0,
        "ratio_tfra": 4.0,
        "learn_bytes_to_keras_static": 3.0,
        "ratio_dense_only": 0.8,
        "ratio_dense_only_cpu": 0.7,
    }


def test_growth_is_what_a_sample_costs_with_many_keys_over_what_it_costs_with_few() -> None:
    few = {"learn_samples_per_s": 100.0, "learn_cpu_us_per_sample": 10.0}
    many = {"learn_samples_per_s": 80.0, "learn_cpu_us_per_sample": 11.0}
    assert growth([few, many]) == {"growth": 1.25, "growth_cpu": 1.1}
    assert growth([few]) == growth([few, {}]) == {}
