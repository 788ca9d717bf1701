"""The trainer's benchmark: sides take turns, rounds make medians, and ratios say which way is better."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.trainer import compared, growth, named, taken_in_turn
from streamlearn.errors import ServiceError

__all__: list[str] = []


def test_sides_take_turns_and_figures_are_medians_of_rounds() -> None:
    asked: list[tuple[str, str, int, int]] = []
    rates = {"one": iter([5.0, 1.0, 3.0]), "other": iter([10.0, 30.0, 20.0, 7.0, 7.0, 9.0])}

    def side(name: str) -> Callable[[str, int, int], dict[str, float]]:
        def answered(group: str, keys_count: int, window_steps: int) -> dict[str, float]:
            asked.append((name, group, keys_count, window_steps))
            return {f"{group}_samples_per_s": next(rates[name])}

        return answered

    sides = {"one": (("learn",), side("one")), "other": (("learn", "grow"), side("other"))}
    found = taken_in_turn(sides, 100, (3, 7), lambda text: None)
    assert asked == [("one", "learn", 100, 7), ("other", "learn", 100, 7), ("other", "grow", 100, 7)] * 3
    assert found == {
        "one": {"learn_samples_per_s": 3.0},
        "other": {"learn_samples_per_s": 10.0, "grow_samples_per_s": 9.0},
    }


def test_a_side_that_fails_is_noted_and_leaves_the_others_alone() -> None:
    def failing(group: str, keys_count: int, window_steps: int) -> dict[str, float]:
        message = "it hung"
        raise ServiceError(message, help="look at it")

    notes: list[str] = []
    sides = {"one": (("learn",), failing), "other": (("learn",), lambda *asked: {"learn_samples_per_s": 2.0})}
    assert taken_in_turn(sides, 100, (1, 7), notes.append) == {"other": {"learn_samples_per_s": 2.0}}
    assert any("one: learn of 100 keys is left out of this round: it hung" in note for note in notes)


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
    assert named(found) == {
        "ratio_keras_static": 2.0,
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
