"""Number: what a label that is a number predicts, how it is learned, and how far predictions are from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from streamlearn.features.names import require

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats: TypeAlias = npt.NDArray[np.floating[Any]]

__all__ = ["Loss", "Number", "check_number"]

Loss: TypeAlias = Literal["squared", "huber", "poisson", "quantile", "weighted_logistic"]

_LOSSES = ("squared", "huber", "poisson", "quantile", "weighted_logistic")
_COMBINES = ("last", "sum", "max")
# Losses whose model says a logarithm: the prediction is `scale` times its exponential.
_LOGARITHMS = ("poisson", "weighted_logistic")
_NUMBER_MAX = 1e30
_LEAST = 1e-12
# Without `low` and `high`, numbers further from the center count as this many scales.
_SCALES_MAX = 1e6


@dataclass(frozen=True, kw_only=True)
class Number:
    """The number that a label is, such as a watch time, a price or a rating.

    Attributes:
        missing: The number of an item without the action, such as 0 for watch time. "unlabelled": nothing is known of
            such an item, as with ratings, and the label is not learned from it.
        loss: How a prediction is judged while learning: "squared", "huber" (less moved by outliers), "quantile",
            or for counts and times that are not negative "poisson" and "weighted_logistic".
        combine: The number of several actions on one item: "last", "sum" or "max". An action that was sent twice, with
            the same time and value, counts once.
        low: Smaller numbers count as this one, in learning, in figures and in predictions; likewise `high`. Without
            them a number is bounded by a million scales, so that one absurd value spoils no step.
        center: What an untrained model predicts, within `low` and `high`; not for "poisson" and "weighted_logistic".
        scale: The unit in which it is learned: about the spread of the numbers, for "poisson" and "weighted_logistic"
            about their mean.
        delta: Of "huber": errors above it, in units of `scale`, count linearly.
        quantile: Of "quantile": the share of numbers that shall be below the prediction.
    """

    missing: float | Literal["unlabelled"]
    loss: Loss = "squared"
    combine: Literal["last", "sum", "max"] = "last"
    low: float | None = None
    high: float | None = None
    center: float = 0.0
    scale: float = 1.0
    delta: float = 1.0
    quantile: float = 0.5

    @property
    def is_logarithm(self) -> bool:
        """Whether a model says the logarithm of the number."""
        return self.loss in _LOGARITHMS

    @property
    def predicts_mean(self) -> bool:
        """Whether predictions tend to the mean, so that their sum is about that of the numbers."""
        return self.loss not in ("huber", "quantile")

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest number that is learned and predicted."""
        # One absurd number would make the step of its row infinite.
        farthest = _SCALES_MAX * self.scale
        low = 0.0 if self.is_logarithm else self.center - farthest
        return low if self.low is None else self.low, self.center + farthest if self.high is None else self.high

    def known(self, values: Floats, is_given: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
        """Return the numbers to learn, of actions' values and of whether there was an action."""
        import numpy as np

        filled = np.where(is_given, values, 0.0 if self.missing == "unlabelled" else self.missing)
        return np.clip(filled, *self.bounds).astype(np.float32)

    def losses(self, predicted: Floats, actual: Floats) -> npt.NDArray[np.float64]:
        """Return the loss of each prediction, as it is learned, less that of the actual number itself."""
        import numpy as np

        guess, truth = (np.asarray(side, np.float64) / self.scale for side in (predicted, actual))
        error: npt.NDArray[np.float64] = truth - guess
        if self.loss == "huber":
            size = np.abs(error)
            return np.where(size <= self.delta, size * size / 2, self.delta * (size - self.delta / 2))
        if self.loss == "quantile":
            return np.maximum(self.quantile * error, (self.quantile - 1) * error)
        if self.is_logarithm:
            guess, truth = np.maximum(guess, _LEAST), np.maximum(truth, _LEAST)
            gap: npt.NDArray[np.float64] = truth * np.log(truth / guess)
            if self.loss == "poisson":
                return gap + guess - truth
            both: npt.NDArray[np.float64] = gap - (1 + truth) * (np.log1p(truth) - np.log1p(guess))
            return both
        return error * error / 2


def check_number(owner: str, number: Number) -> None:
    """Refuse a declaration that contradicts itself; `owner` names the label."""
    for field, known in (("loss", _LOSSES), ("combine", _COMBINES)):
        value = getattr(number, field)
        require(value in known, f"{owner}: {field} is {value!r}", f"{field} is one of {', '.join(known)}")
    if number.missing != "unlabelled":
        _check_finite(owner, "missing", number.missing, 'a number, or "unlabelled"')
    for field in ("low", "high", "center"):
        if getattr(number, field) is not None:
            _check_finite(owner, field, getattr(number, field), f"a number of at most {_NUMBER_MAX:g}")
    for field in ("scale", "delta"):
        value = getattr(number, field)
        _check_finite(owner, field, value, "a number above 0")
        require(value > 0, f"{owner}: {field} is {value!r}", f"{field} must be above 0")
    message = f"{owner}: quantile is {number.quantile!r}"
    is_share = isinstance(number.quantile, float) and 0 < number.quantile < 1
    require(is_share, message, "quantile must be above 0 and below 1")
    low, high = number.bounds
    require(low < high, f"{owner}: low is {number.low!r} and high {number.high!r}", "low must be below high")
    for field in ("missing", "center"):
        value = getattr(number, field)
        if value != "unlabelled" and not (field == "center" and number.is_logarithm):
            message = f"{owner}: {field} is {value!r}, outside {low:g} to {high:g}"
            help = f"{field} must be within low and high, which are a million scales from center unless they are set"
            require(low <= value <= high, message, help)
    if number.is_logarithm:
        require(low >= 0, f"{owner}: low is {low!r}", f"numbers that are learned by {number.loss!r} are not negative")
        message = f"{owner}: center is {number.center!r}, which {number.loss!r} does not have"
        require(number.center == 0, message, "set scale to about the mean of the numbers instead")


def _check_finite(owner: str, field: str, value: Any, expected: str) -> None:
    valid = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _NUMBER_MAX
    require(valid, f"{owner}: {field} is {value!r}", f"{field} must be {expected}")
