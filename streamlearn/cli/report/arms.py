"""Arms of experiments: rates and the quality of predictions by arm, with bounds by a bootstrap over users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamlearn.cli.report.users import FIGURES, UserSums, bounds_of, draws
from streamlearn.trainer.validation import ScoreColumns
from streamlearn.trainer.validation.rows import ARM

__all__ = ["ArmFigure", "ArmScore", "arm_figures_of", "arms_of"]


@dataclass(frozen=True)
class ArmScore:
    """The rate of a label in one arm, beside that of the arm that it is compared with.

    Attributes:
        rows: Items that were shown to its users.
        rate: Positives of an item, or the mean of a label that is a number.
        rate_low: The lower bound of its 95 % interval; likewise the others. None with too few users.
        against: The arm that it is compared with; empty for that arm itself.
        difference: Its rate less that of the other.
        finding: Its meaning, in words.
    """

    label: str
    experiment: str
    arm: str
    rows: int
    rate: float | None
    rate_low: float | None
    rate_high: float | None
    against: str
    difference: float | None
    difference_low: float | None
    difference_high: float | None
    finding: str


@dataclass(frozen=True)
class ArmFigure:
    """How good the predictions of a label are in one arm, beside the arm that it is compared with.

    Attributes:
        figure: One of `FIGURES`.
        value: The figure; the others are as in `ArmScore`.
    """

    label: str
    experiment: str
    arm: str
    figure: str
    value: float | None
    low: float | None
    high: float | None
    against: str
    difference: float | None
    difference_low: float | None
    difference_high: float | None
    finding: str


def arms_of(windows: ScoreColumns, first: Mapping[str, str]) -> list[ArmScore]:
    """Return the arms of each experiment, by label.

    They are compared with the arm that `first` names for the experiment, else with the one that has most rows.

    Args:
        windows: Windows of one width, each once.
        first: By experiment, its first arm.
    """
    return [
        ArmScore(*place, arm.rows, *_compared("rate", arm, other, against))
        for place, arm, other, against in _arms(windows, first)
    ]


def arm_figures_of(windows: ScoreColumns, first: Mapping[str, str]) -> list[ArmFigure]:
    """Return how good predictions are in each arm, as `arms_of`; nothing where windows have no sums for it."""
    return [
        ArmFigure(*place, figure, *_compared(figure, arm, other, against))
        for place, arm, other, against in _arms(windows, first)
        for figure in FIGURES
        if arm.value(figure) is not None
    ]


def _arms(
    windows: ScoreColumns, first: Mapping[str, str]
) -> Iterator[tuple[tuple[str, str, str], UserSums, UserSums, str]]:
    """Yield the label, the experiment and the name of each arm with its sums, those of the other one, and its name."""
    known: dict[tuple[str, str], dict[str, list[int]]] = {}
    columns = (windows[name].tolist() for name in ("label", "segment", "text", "user_sums"))
    for row, (label, segment, text, sums) in enumerate(zip(*columns, strict=True)):
        experiment, _, name = text.rpartition(":")
        if segment == ARM and name and sums and text != "(other)":
            known.setdefault((label, experiment), {}).setdefault(name, []).append(row)
    for (label, experiment), rows in known.items():
        arms = {name: UserSums(windows.where(np.array(of, np.int64))) for name, of in rows.items()}
        names = sorted(arms, key=lambda name: (name != first.get(experiment), -arms[name].rows, name))
        for name in names if len(names) > 1 else ():
            yield (label, experiment, name), arms[name], arms[names[0]], names[0]


def _compared(figure: str, arm: UserSums, other: UserSums, against: str) -> tuple[Any, ...]:
    """Return the fields of a figure from its value to the finding."""
    # The same users are drawn for all arms: who meets several of them does not make these differ.
    value, values = arm.value(figure), arm.values(figure, draws())
    low, high = bounds_of(values) if arm.has_enough else (None, None)
    if arm is other:
        return (value, low, high, "", None, None, None, "")
    theirs, difference, least, most = other.value(figure), None, None, None
    if value is not None and theirs is not None:
        difference = value - theirs
        if arm.has_enough and other.has_enough:
            least, most = bounds_of(values - other.values(figure, draws()))
    return (value, low, high, against, difference, least, most, _finding(difference, least, most, theirs))


def _finding(difference: float | None, low: float | None, high: float | None, other: float | None) -> str:
    """Return what a difference means.

    Examples:
        >>> _finding(0.01, -0.01, 0.03, 0.1), _finding(-0.01, -0.02, -0.005, 0.1), _finding(0.3, None, None, 0.1)
        ('noise: it may be chance', 'lower by 10.0 %', 'too few users to tell')
    """
    if difference is None or low is None or high is None:
        return "too few users to tell"
    if low <= 0 <= high:
        return "noise: it may be chance"
    by = f" by {abs(difference / other):.1%}".replace("%", " %") if other else ""
    return f"{'higher' if difference > 0 else 'lower'}{by}"
