"""Slices: a step cut into a fixed number of pieces. The cut is a pure function of the step, and knows no worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from streamlearn.samples import renumbered
from streamlearn.settings.trainer import TrainerSettings
from streamlearn.trainer.columns import Inputs

__all__ = ["STRICT", "SliceRule", "cut", "slice_rows"]


class SliceRule(NamedTuple):
    """What may happen to slices; see `SlicePart`.

    Attributes:
        may_repeat: Whether others learn the slices of a lost worker. If not, all go back to the newest version.
        at_once: Whether shards apply a slice's rows when they come, and not the step as a whole.
    """

    may_repeat: bool = False
    at_once: bool = False

    @classmethod
    def of(cls, settings: TrainerSettings) -> SliceRule:
        """Return the rule of an order of training."""
        is_arrival = settings.order == "arrival"
        return cls(is_arrival, is_arrival and settings.staleness_steps > 0)


STRICT = SliceRule()


def slice_rows(step_rows: int, slices: int) -> int:
    """Return the most rows of a slice, to which every slice is padded.

    Examples:
        >>> slice_rows(1_024, 4), slice_rows(10, 4)
        (256, 3)
    """
    return -(-step_rows // slices)


def cut(inputs: Inputs, slices: int) -> Iterator[Inputs]:
    """Yield the slices of a step, whose rows differ by one at most; some are empty if there are few rows.

    A request whose rows are in two slices is in both of them, so that all slices have one shape.
    """
    rows = len(inputs)
    for number in range(slices):
        chosen = slice(rows * number // slices, rows * (number + 1) // slices)
        index, requests = renumbered(inputs.request_index[chosen], inputs.requests)
        yield Inputs(
            requests=len(requests),
            user=inputs.user.take(requests),
            item=inputs.item.take(chosen),
            request_index=index,
            targets=inputs.targets[chosen],
        )
