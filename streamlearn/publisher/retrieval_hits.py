"""RetrievalHits: the check that a version's towers find what users chose, as well as those of the active version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamlearn.errors import VersionRefused
from streamlearn.publisher.case import Case
from streamlearn.samples import SampleBatch
from streamlearn.versions import Finding

__all__ = ["TOP", "Finder", "Found", "RetrievalHits", "fall_of"]

Bools = npt.NDArray[np.bool_]

TOP = 100
"""A positive is found if its item is among this many."""
# With fewer positives, chance explains almost any difference, and its error is estimated badly.
_POSITIVES_MIN = 30
# A difference counts from this many of its standard errors on, as for AUC.
_ERRORS = 3


@dataclass(frozen=True, eq=False)
class Found:
    """The same P positives, searched with two versions."""

    now: Bools  # bool[P]: whether the version finds the item among its first `TOP`
    before: Bools  # bool[P]: whether the active version does
    request: npt.NDArray[np.int64]  # int64[P]: the number of each one's request
    items: int  # in the library of the version


class Finder(Protocol):
    """Searches the items of versions for those that users chose. Guarantees and requirements are those of `Scorer`."""

    def found(self, version: int, active: int, batches: Sequence[SampleBatch]) -> Found:
        """Search the items of both versions for positives of samples that neither has learned, or for some of them.

        Raises:
            VersionRefused: The rows, weights or vectors of a version are no longer available.
        """


class RetrievalHits:
    """Rejects a version whose hit rate on the same positives is worse than the active one's, by more than chance.

    Positives of one request count as one in the standard error, because they share the vector of a user.
    """

    name = "retrieval"

    def __init__(self, finder: Finder) -> None:
        self._finder = finder

    def judge(self, case: Case) -> Finding:
        """See `Check`."""
        if not case.settings.hit_drop_ratio_max:
            return Finding(check=self.name, is_ok=True, said="hit_drop_ratio_max is 0: this check is off")
        if case.samples is None:
            return self._not_checked("samples are no longer scored by this version")
        if case.active is None:
            return self._not_checked("no version is active, so there is none to compare with")
        try:
            found = self._finder.found(case.version.version, case.active.version, list(case.samples()))
        except VersionRefused as error:
            return self._not_checked(f"the items cannot be searched: {error.message}")
        count = len(found.now)
        if not count:
            return self._not_checked("no positive of a closed window is there to be found")
        now, before = float(found.now.mean()), float(found.before.mean())
        text = f"hit rate {now:.4f} ({before:.4f}) in the first {TOP} of {found.items} items, {count} positives"
        worse = fall_of(found, case.settings.hit_drop_ratio_max)
        values = {"retrieval_hit_100": now, "active.retrieval_hit_100": before, "retrieval_positives": float(count)}
        return Finding(check=self.name, is_ok=not worse, said="; ".join(filter(None, (worse, text))), values=values)

    def _not_checked(self, text: str) -> Finding:
        return Finding(check=self.name, is_ok=True, is_checked=False, said=text)


def fall_of(found: Found, drop_ratio_max: float) -> str:
    """Say how far the hit rate fell, if by more than a share of the active version's and by more than chance.

    Examples:
        >>> now, before = np.arange(100) < 10, np.arange(100) < 40
        >>> fall_of(Found(now, before, np.arange(100), 5_000), 0.1)
        'hit rate fell by 75.00% (standard error 11.46%)'
        >>> fall_of(Found(before, before, np.arange(100), 5_000), 0.1)
        ''
    """
    count, was = len(found.now), float(found.before.mean())
    fall = was - float(found.now.mean())
    if count < _POSITIVES_MIN or fall <= drop_ratio_max * was:
        return ""
    moved = found.before.astype(np.float64) - found.now - fall
    error = float(np.sqrt(np.square(np.bincount(found.request, moved)).sum())) / count
    if fall <= _ERRORS * error:
        return ""
    return f"hit rate fell by {fall / was:.2%} (standard error {error / was:.2%})"
