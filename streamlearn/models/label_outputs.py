"""Label outputs: turns what a model says of each label into what it predicts, a logit or a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from streamlearn.features import FeatureSpec, Number, PackSide
from streamlearn.features.combination import CURVE_KNOTS, CURVE_SHAPE
from streamlearn.features.labels import Output
from streamlearn.models.description import TensorNote
from streamlearn.models.model_errors import wrap_errors
from streamlearn.models.protocol import Model, PackedSide, Tensor

__all__ = ["LabelOutputs", "Passed", "curve_rows", "curved", "predictions_of"]


_STEPS = [*(CURVE_KNOTS >> shift for shift in range(1, CURVE_KNOTS.bit_length())), 1]


@dataclass(frozen=True, eq=False)
class Passed:
    """Numbers of calibrations, which pass by the model, two for each: of users, or of candidates."""

    numbers: Tensor  # (users or candidates, 2 * calibrations)
    user_index: Tensor | None = None  # the user of each candidate; None for candidates

    def of_candidates(self, values: Tensor) -> Tensor:
        """Return values of users or candidates for each candidate."""
        return values if self.user_index is None else tf.gather(values, self.user_index)


class LabelOutputs:
    """A model together with what is made of its outputs.

    Inputs are those of all features. The model gets them without the numbers of calibrations, which pass by it: in
    exported graphs, those of the user as the last channels of what `user` returns.

    Attributes:
        curve_notes: The weights that follow those of the model: the curves of each label that has some.
    """

    def __init__(self, model: Model, features: FeatureSpec, outputs: Sequence[Output]) -> None:
        self.model, self.labels, self._outputs = model, len(outputs), tuple(outputs)
        sides = (features.pack.user, features.pack.item)
        names = {one.name for one in features.calibrations}
        self._user, self._item = (_channels(side, names) for side in sides)
        # The place of each calibration among the numbers that pass by the model.
        passed = [column.name for side in sides for column in side.flat if column.name in names]
        self._places = [[passed.index(name) for name in output.calibrations] for output in outputs]
        curves = [(at, output.curve) for at, output in enumerate(outputs) if output.curve is not None]
        self._curves = [(at, passed.index(curve.name)) for at, curve in curves]
        self.curve_notes = tuple(TensorNote(curve.weight_name, "float32", CURVE_SHAPE) for _, curve in curves)

    @property
    def has_calibrations(self) -> bool:
        """Whether any label has calibrations."""
        return any(self._places)

    def said(
        self, weights: Sequence[Tensor], user: PackedSide, user_index: Tensor, item: PackedSide
    ) -> tuple[Tensor, list[Passed]]:
        """Return what the model says of each label, and the numbers of calibrations for `predictions`."""
        (user, of_user), (item, of_item) = _parted(user, self._user), _parted(item, self._item)
        with wrap_errors(self.model, "user"):
            known = self.model.user(weights, user)
        return self._said(weights, (known, of_user), user_index, (item, of_item))

    def user(self, weights: Sequence[Tensor], inputs: PackedSide) -> PackedSide:
        """Return everything that depends on the user alone, in an exported graph."""
        inputs, numbers = _parted(inputs, self._user)
        with wrap_errors(self.model, "user"):
            known = PackedSide(*self.model.user(weights, inputs))
        if numbers is None or not _is_fit(known.flat):  # the caller refuses what is not fit
            return known
        return PackedSide(numbers if known.flat is None else tf.concat([known.flat, numbers], axis=1), known.sequence)

    def score(
        self, weights: Sequence[Tensor], user: PackedSide, user_index: Tensor, inputs: PackedSide
    ) -> tuple[Tensor, list[Passed]]:
        """Return the same as `said`, from what `user` returned."""
        count = self._user[1] - self._user[0]
        width = user.flat.shape[1] if count else 0
        return self._said(weights, _parted(user, (width - count, width)), user_index, _parted(inputs, self._item))

    def _said(
        self,
        weights: Sequence[Tensor],
        user: tuple[PackedSide, Tensor | None],
        user_index: Tensor,
        item: tuple[PackedSide, Tensor | None],
    ) -> tuple[Tensor, list[Passed]]:
        with wrap_errors(self.model, "score"):
            said = self.model.score(weights, user[0], user_index, item[0])
        of_user = [] if user[1] is None else [Passed(user[1], user_index)]
        return said, of_user if item[1] is None else [*of_user, Passed(item[1])]

    def calibrated(self, said: Tensor, numbers: Sequence[Passed]) -> Tensor:
        """Return what the model says with the scale and the offset of each calibration."""
        if not self.has_calibrations:
            return said
        pairs = tf.concat([passed.of_candidates(passed.numbers) for passed in numbers], axis=1)
        scales, offsets = pairs[:, ::2], pairs[:, 1::2]
        own = tf.unstack(said, axis=1)
        for label, places in enumerate(self._places):
            if places:
                scale, offset = (tf.reduce_sum(tf.gather(part, places, axis=1), axis=1) for part in (scales, offsets))
                own[label] = own[label] * (1.0 + scale) + offset
        return tf.stack(own, axis=1)

    def predictions(self, said: Tensor, numbers: Sequence[Passed], curves: Sequence[Tensor] = ()) -> Tensor:
        """Return (N, labels) predictions; without `curves`, those to which curves are fitted."""
        predictions = predictions_of(self.calibrated(said, numbers), self._outputs)
        if not curves:
            return predictions
        own = tf.unstack(predictions, axis=1)
        columns = [(passed, at) for passed in numbers for at in range(0, passed.numbers.shape[1], 2)]
        for (label, place), curve in zip(self._curves, curves, strict=True):
            passed, at = columns[place]
            rows = passed.of_candidates(curve_rows(passed.numbers[:, at : at + 2], curve))
            own[label] = curved(own[label], rows, curve)
        return tf.stack(own, axis=1)


def predictions_of(said: Tensor, outputs: Sequence[Output]) -> Tensor:
    """Return (N, labels) predictions, from what a model says of each label, calibrated.

    Of a label that follows another, it says how probable it is after that one, as in ESMM: its probability at all is
    the product of both. Of a label that is a number, it says the number in its own unit, or the logarithm of that.
    """
    if all(output.followed is None and output.number is None for output in outputs):
        return said
    own = tf.unstack(said, axis=1)

    def whole(label: int) -> Tensor:
        output = outputs[label]
        if output.number is not None:
            return _number_of(own[label], output.number)
        if output.followed is None:
            return own[label]
        first, then = whole(output.followed), own[label]
        # 1 / (product of two sigmoids) - 1 = e^-a + e^-b + e^-(a + b)
        return -tf.reduce_logsumexp(tf.stack([-first, -then, -first - then]), axis=0)

    return tf.stack([whole(label) for label in range(len(outputs))], axis=1)


def curve_rows(numbers: Tensor, curves: Tensor) -> Tensor:
    """Return the row of the curve of each of N values, whose keys' numbers are (N, 2); see `CURVE_SHAPE`."""
    is_own = tf.reduce_all(tf.equal(numbers[:, tf.newaxis], curves[tf.newaxis, :, :2]), axis=2)
    return tf.reduce_max(tf.where(is_own, tf.range(CURVE_SHAPE[0])[tf.newaxis], 0), axis=1)


def curved(logits: Tensor, rows: Tensor, curves: Tensor) -> Tensor:
    """Return N logits, each by the curve in its row; see `CURVE_SHAPE`."""
    flat, first = tf.reshape(curves, [-1]), rows * CURVE_SHAPE[1] + 2
    passed = tf.zeros_like(rows)
    # By halves: XLA would compute logits again for each comparison with all knots at once.
    for step in _STEPS:
        passed += step * tf.cast(logits >= tf.gather(flat, first + passed + (step - 1)), tf.int32)
    left, right = first + tf.maximum(passed - 1, 0), first + tf.minimum(passed, CURVE_KNOTS - 1)
    begin, end, low, high = (tf.gather(flat, at) for at in (left, right, left + CURVE_KNOTS, right + CURVE_KNOTS))
    is_within = end > begin
    gap, rise = tf.where(is_within, end - begin, 1.0), tf.where(is_within, high - low, 1.0)
    # No line ends above the next one by rounding. A quotient is no part of a fused product and sum, so that graphs of
    # all compilers give the same bits.
    most = tf.where(passed < CURVE_KNOTS, high, tf.float32.max)
    return tf.minimum((logits - begin) * rise / gap + low, most)


def _channels(side: PackSide, names: set[str]) -> tuple[int, int]:
    """Return the first channel and the end of the named columns, which are next to each other."""
    columns = [column for column in side.flat if column.name in names]
    return (columns[0].at, columns[-1].at + columns[-1].width) if columns else (0, 0)


def _parted(inputs: PackedSide, channels: tuple[int, int]) -> tuple[PackedSide, Tensor | None]:
    """Return inputs without some channels of the flat matrix, and these channels; None without any."""
    begin, end = channels
    if begin == end:
        return inputs, None
    width = int(inputs.flat.shape[1])
    parts = [inputs.flat[:, first:last] for first, last in ((0, begin), (end, width)) if first < last]
    return PackedSide(tf.concat(parts, axis=1) if parts else None, inputs.sequence), inputs.flat[:, begin:end]


def _is_fit(flat: Tensor) -> bool:
    return flat is None or (flat.dtype == tf.float32 and flat.shape.rank == 2)


def _number_of(said: Tensor, number: Number) -> Tensor:
    scaled = number.scale * (tf.exp(said) if number.is_logarithm else said) + number.center
    return tf.clip_by_value(scaled, *number.bounds)
