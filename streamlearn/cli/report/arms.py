"""Arms of experiments: the rate of each label by arm, with bounds by a bootstrap over users. It draws nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamlearn.trainer.validation import ScoreColumns
from streamlearn.trainer.validation.rows import ARM, USER_GROUPS
from streamlearn.trainer.validation.score import user_sums_of

__all__ = ["ArmScore", "arms_of"]

Floats = npt.NDArray[np.float64]
_REPEATS, _SEED = 1_000, 7
_BOUNDS = (2.5, 97.5)
_GROUPS_MIN = 20


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


class _Arm:
    """Sums of an arm by group of users, of what happened and of weights: float64[2, groups]."""

    def __init__(self) -> None:
        self.rows, self.sums = 0, np.zeros((2, USER_GROUPS))

    @property
    def rate(self) -> float | None:
        happened, weight = self.sums.sum(1)
        return float(happened / weight) if weight else None

    @property
    def has_enough(self) -> bool:
        """Whether it has enough users for bounds."""
        return int(np.count_nonzero(self.sums[1])) >= _GROUPS_MIN

    def rates(self, draws: Floats) -> Floats:
        """Return its rate for each draw of users."""
        happened, weight = (draws @ one for one in self.sums)
        rates: Floats = np.divide(happened, weight, out=np.full(len(draws), np.nan), where=weight > 0)
        return rates


def arms_of(windows: ScoreColumns, first: Mapping[str, str]) -> list[ArmScore]:
    """Return the arms of each experiment, by label.

    They are compared with the arm that `first` names for the experiment, else with the one that has most rows.

    Args:
        windows: Windows of one width, each once.
        first: By experiment, its first arm.
    """
    # The same users are drawn for all arms: who meets several of them does not make these differ.
    draws = np.random.default_rng(_SEED).multinomial(USER_GROUPS, np.full(USER_GROUPS, 1 / USER_GROUPS), _REPEATS)
    found = []
    for (label, experiment), arms in _arms(windows).items():
        names = sorted(arms, key=lambda name: (name != first.get(experiment), -arms[name].rows, name))
        if len(names) > 1:
            found += [_score((label, experiment, name), arms, names[0], draws.astype(np.float64)) for name in names]
    return found


def _arms(windows: ScoreColumns) -> dict[tuple[str, str], dict[str, _Arm]]:
    """Return the arms by label and experiment."""
    known: dict[tuple[str, str], dict[str, _Arm]] = {}
    columns = (windows[name].tolist() for name in ("label", "segment", "text", "rows", "user_sums"))
    for label, segment, text, rows, sums in zip(*columns, strict=True):
        experiment, _, name = text.rpartition(":")
        if segment == ARM and name and sums and text != "(other)":
            arm = known.setdefault((label, experiment), {}).setdefault(name, _Arm())
            arm.rows += rows
            arm.sums += user_sums_of(sums)
    return known


def _score(place: tuple[str, str, str], arms: Mapping[str, _Arm], against: str, draws: Floats) -> ArmScore:
    arm, other = arms[place[2]], arms[against]
    difference, least, most = None, None, None
    low, high = _bounds(arm.rates(draws)) if arm.has_enough else (None, None)
    if arm is other:
        return ArmScore(*place, arm.rows, arm.rate, low, high, "", None, None, None, "")
    if arm.rate is not None and other.rate is not None:
        difference = arm.rate - other.rate
        if arm.has_enough and other.has_enough:
            least, most = _bounds(arm.rates(draws) - other.rates(draws))
    finding = _finding(difference, least, most, other.rate)
    return ArmScore(*place, arm.rows, arm.rate, low, high, against, difference, least, most, finding)


def _bounds(values: Floats) -> tuple[float, float]:
    low, high = np.nanpercentile(values, _BOUNDS)
    return float(low), float(high)


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
