"""UserSums: figures of windows from sums by group of users, with bounds by a bootstrap over users. It draws nothing."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from streamlearn.trainer.validation import ScoreColumns
from streamlearn.trainer.validation.rows import USER_GROUPS
from streamlearn.trainer.validation.score import user_sums_of

__all__ = ["FIGURES", "UserSums", "bounds_of", "draws"]

Floats = npt.NDArray[np.float64]
FIGURES = ("auc", "mae", "log_loss", "calibration")
"""The figures that windows of an hour or more have by user, beside the rate."""
_REPEATS, _SEED = 1_000, 7
_BOUNDS = (2.5, 97.5)
_GROUPS_MIN = 20


class UserSums:
    """The sums by group of users of some windows of one label and text.

    Attributes:
        rows: How many rows there are.
        has_all: Whether every window with rows has the sums of all `FIGURES`.
    """

    def __init__(self, windows: ScoreColumns) -> None:
        self.rows, self.has_all = int(windows["rows"].sum()), True
        self._sums, self._deviation = np.zeros((4, USER_GROUPS)), np.zeros(USER_GROUPS)
        self._is_number = bool(np.isfinite(windows["mae"]).any())
        pairs = windows["positives_weight"] * (windows["all_weight"] - windows["positives_weight"])
        pairs = np.where(np.isfinite(windows["auc_ratio"]), pairs, 0.0)
        shares = pairs / pairs.sum() if pairs.sum() else pairs
        self._auc = float((shares * np.nan_to_num(windows["auc_ratio"])).sum()) if pairs.sum() else np.nan
        for text, rows, share in zip(windows["user_sums"].tolist(), windows["rows"].tolist(), shares, strict=True):
            sums = user_sums_of(text) if text else np.zeros((0, USER_GROUPS))
            self._sums[: min(len(sums), 4)] += sums[:4]
            self._deviation += share * sums[4] if len(sums) > 4 else 0.0
            self.has_all &= len(sums) > 4 or not rows

    @property
    def has_enough(self) -> bool:
        """Whether there are enough users for bounds."""
        return int(np.count_nonzero(self._sums[1])) >= _GROUPS_MIN

    def value(self, figure: str) -> float | None:
        """Return a figure of all windows; None if it is not defined, or not known by user."""
        (value,) = self.values(figure, np.ones((1, USER_GROUPS))).tolist()
        return None if np.isnan(value) else value

    def values(self, figure: str, drawn: Floats) -> Floats:
        """Return a figure for each draw of users, a row each; the AUC by how much each user moves it (DeLong)."""
        none = np.full(len(drawn), np.nan)
        is_known = self.has_all and figure in ("calibration", *(["mae"] if self._is_number else ["auc", "log_loss"]))
        if figure != "rate" and not is_known:
            return none
        if figure == "auc":
            moved: Floats = self._auc + drawn @ self._deviation
            return moved
        happened, weight, loss, predicted = (drawn @ one for one in self._sums)
        over = {"rate": (happened, weight), "calibration": (predicted, happened)}.get(figure, (loss, weight))
        values: Floats = np.divide(*over, out=none, where=over[1] > 0)
        return values


@cache
def draws() -> Floats:
    """Return how often each group of users is drawn, float64[draws, groups]; the same for all that are compared."""
    drawn = np.random.default_rng(_SEED).multinomial(USER_GROUPS, np.full(USER_GROUPS, 1 / USER_GROUPS), _REPEATS)
    return drawn.astype(np.float64)


def bounds_of(values: Floats) -> tuple[float, float] | tuple[None, None]:
    """Return the 95 % interval of drawn values; None if there are none."""
    if np.isnan(values).all():
        return None, None
    low, high = np.nanpercentile(values, _BOUNDS)
    return float(low), float(high)
