"""Inherited weights: what a changed model's dense weights take over from those of the model that it replaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Channels", "Inheritance", "Outcome", "inherit"]

Float32s: TypeAlias = npt.NDArray[np.float32]
Channels: TypeAlias = "Mapping[str, tuple[Sequence[tuple[str, int]] | None, ...]]"
"""By weight, the channels of each dimension; None for a dimension that is the model's own."""
Outcome: TypeAlias = Literal["kept", "widened", "new", "lost"]


@dataclass(frozen=True)
class Inheritance:
    """Where the numbers of one weight come from.

    Attributes:
        outcome: "kept": all are inherited. "widened": those of new inputs are zero, so that scores stay as they are,
            and those of new outputs are initial. "new": it takes new inputs only, and is zero. "lost": all are initial.
        source: The name of the weight that it inherits from.
        places: By dimension, the index in the source of each index here; -1 if it has none.
    """

    outcome: Outcome
    source: str = ""
    places: tuple[npt.NDArray[np.int64], ...] = ()

    def fill(self, initial: Float32s, sources: Mapping[str, Float32s], *, is_state: bool = False) -> Float32s:
        """Return the weight, from its initial numbers and the weights that the other model learned.

        `is_state` fills the optimizer's numbers for the weight instead: those of new inputs are initial.
        """
        if self.outcome == "lost" or (is_state and self.outcome == "new"):
            return initial
        if self.outcome == "new":
            return np.zeros_like(initial)
        filled = initial.copy()
        if len(self.places) > 1 and not is_state:
            filled[self.places[0] < 0] = 0
        here = [np.flatnonzero(place >= 0) for place in self.places]
        there = [place[place >= 0] for place in self.places]
        filled[np.ix_(*here)] = sources[self.source][np.ix_(*there)]
        return filled


def inherit(
    shapes: Mapping[str, tuple[int, ...]],
    channels: Channels,
    source_shapes: Mapping[str, tuple[int, ...]],
    source_channels: Channels,
    renamed: Mapping[str, str],
) -> dict[str, Inheritance]:
    """Return what each weight inherits.

    Channels of both models have the same names where they mean the same. `renamed` has, by the name of a slot, the
    one that it had in the names of the other model's weights.

    Examples:
        >>> old, new = (("a", 0), ("b", 0)), (("a", 0), ("c", 0), ("b", 0))
        >>> found = inherit({"w": (3, 1)}, {"w": (new, None)}, {"w": (2, 1)}, {"w": (old, None)}, {})["w"]
        >>> found.outcome
        'widened'
        >>> found.fill(np.ones((3, 1), np.float32), {"w": np.array([[5], [7]], np.float32)}).ravel().tolist()
        [5.0, 0.0, 7.0]
        >>> found.fill(np.ones((3, 1), np.float32), {"w": np.array([[5], [7]], np.float32)}, is_state=True)[1].tolist()
        [1.0]
    """
    known = {channel for axes in source_channels.values() for axis in axes for channel in axis or ()}
    inherited = {}
    for name, shape in shapes.items():
        source = _source(name, source_shapes, renamed)
        axes = channels.get(name, ())
        if source is None:
            is_new = bool(axes) and axes[0] is not None and not known.intersection(axes[0])
            inherited[name] = Inheritance("new" if is_new else "lost")
            continue
        inherited[name] = _matched(source, (shape, source_shapes[source]), axes, source_channels.get(source, ()))
    return inherited


def _matched(
    source: str,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    axes: Sequence[Sequence[tuple[str, int]] | None],
    source_axes: Sequence[Sequence[tuple[str, int]] | None],
) -> Inheritance:
    shape, source_shape = shapes
    if len(shape) != len(source_shape):
        return Inheritance("lost")
    pad = (None,) * len(shape)
    places = []
    for size, source_size, axis, source_axis in zip(shape, source_shape, axes or pad, source_axes or pad, strict=True):
        if axis is not None and source_axis is not None:
            at = {channel: index for index, channel in enumerate(source_axis)}
            places.append(np.array([at.get(channel, -1) for channel in axis], np.int64))
        elif (axis is None) == (source_axis is None) and size == source_size:
            places.append(np.arange(size, dtype=np.int64))
        else:
            return Inheritance("lost")
    is_whole = all((place >= 0).all() for place in places)
    return Inheritance("kept" if is_whole else "widened", source, tuple(places))


def _source(name: str, sources: Mapping[str, object], renamed: Mapping[str, str]) -> str | None:
    if name in sources:
        return name
    for slot, was in renamed.items():
        before = f"{name.removesuffix(slot)}{was}"
        if name.endswith(f"_{slot}") and before in sources:
            return before
    return None
