"""Texts: one-byte codes for the first texts of each segment; all later texts share one code."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from streamlearn.samples import SegmentColumns

__all__ = ["OTHER", "Texts"]

OTHER = "(other)"
_TEXT_CHARS_MAX = 200
_log = logging.getLogger(__name__)


class Texts:
    """The codes of all segments' texts; `texts_max` texts of a segment get a code of their own.

    Examples:
        >>> texts = Texts(("page",), texts_max=1)
        >>> columns = SegmentColumns("page", ("home", "search"), np.array([1, 1, 0], np.int32))
        >>> texts.codes((columns,), rows=3)[:, 0].tolist(), texts.all
        ([0, 0, 1], (('page', ('(other)', 'home')),))
    """

    def __init__(self, names: Sequence[str], texts_max: int) -> None:
        self.names = tuple(names)
        self._texts_max = texts_max
        self._codes: list[dict[str, int]] = [{OTHER: 0} for _ in names]

    @property
    def all(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The names of all segments, each with its texts by code."""
        return tuple((name, tuple(codes)) for name, codes in zip(self.names, self._codes, strict=True))

    def codes_of(self, segment: int, texts: Sequence[str]) -> npt.NDArray[np.uint8]:
        """Return the codes of some texts of a segment."""
        return np.array([self._code(segment, text) for text in texts], np.uint8)

    def codes(self, columns: Sequence[SegmentColumns], rows: int) -> npt.NDArray[np.uint8]:
        """Return the codes of some rows, uint8[rows, segments]; a segment that is missing is `(other)`.

        Texts get codes in the order of `SegmentColumns.texts`.
        """
        result = np.zeros((rows, len(self.names)), np.uint8)
        given = {column.name: column for column in columns}
        for at, name in enumerate(self.names):
            if name in given:
                result[:, at] = self.codes_of(at, given[name].texts)[given[name].codes]
        return result

    def _code(self, segment: int, text: str) -> int:
        known, text = self._codes[segment], text[:_TEXT_CHARS_MAX]
        if text not in known and len(known) <= self._texts_max:
            known[text] = len(known)
            if len(known) > self._texts_max:
                message = "segment %s has %d or more texts: later ones are scored together as %s"
                _log.info(message, self.names[segment], self._texts_max, OTHER)
        return known.get(text, 0)
