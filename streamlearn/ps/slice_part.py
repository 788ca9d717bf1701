"""SlicePart: one of the slices into which a step is cut, so that several workers can learn it."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from streamlearn.table.arguments import UINT64_MAX, whole

__all__ = ["SLICES_MAX", "NativePart", "SlicePart"]

SLICES_MAX = 1024
NativePart: TypeAlias = tuple[tuple[int, int, int, bool, bool], bool]
"""The fields of a `SlicePart`, and whether the slice's numbers are finite."""


class SlicePart(NamedTuple):
    """One slice of one step.

    Attributes:
        step: The step; each step of an epoch has a higher number than the one before.
        slice: The slice, from 0.
        slices: How many slices the step has; the same for all workers.
        may_repeat: Whether another worker may give the slice, too; shards ignore what they have already. The steps of
            an epoch then follow each other by one.
        at_once: Whether shards apply the slice's rows when they come, and not when they have all slices.
    """

    step: int
    slice: int
    slices: int
    may_repeat: bool = False
    at_once: bool = False

    def native(self, is_finite: bool) -> NativePart:
        """The slice as the native client takes it, after a check of its numbers."""
        slices = whole("slices", self.slices, 1, SLICES_MAX)
        slice = whole("slice", self.slice, 0, slices - 1)
        step = whole("step", self.step, 0, UINT64_MAX)
        return (step, slice, slices, self.may_repeat, self.at_once), bool(is_finite)
