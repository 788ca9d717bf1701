"""Deletion: an operator's request to remove rows from a model, by their keys. The trainer obeys it at its cuts."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Versions
from typing import Annotated

from msgspec import Meta, structs

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.versions.format.record import Record
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.layout import model_folder
from streamlearn.versions.store.sequence import Sequence

__all__ = ["KEYS_MAX", "OBEYED", "Deletion", "Deletions", "in_force", "obeyed_by"]

OBEYED = "deletions_obeyed"
"""The metric of a version with the number of the last deletion that it carries out."""
KEYS_MAX = 10_000
"""Most keys of one table in a deletion."""

_HELP = "restore it from a copy; or remove it and ask again: a trainer cannot start before"

Keys = Annotated[tuple[Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")], ...], Meta(max_length=KEYS_MAX)]


class Deletion(Record, frozen=True, kw_only=True):
    """A request to remove rows from a model.

    Attributes:
        seq: Its number among the deletions of a model.
        keys: By table, as hexadecimal numbers. The values that they are hashes of are not kept.
        until_ms: Event time. Until samples have passed it, the rows are removed again at every cut: samples of earlier
            events would bring them back.
    """

    seq: Annotated[int, Meta(ge=1, le=10**12 - 1)] = 1
    keys: Annotated[dict[str, Keys], Meta(max_length=1_000)]
    until_ms: Annotated[int, Meta(ge=0, le=1 << 62)]
    by: Annotated[str, Meta(max_length=200)] = ""
    reason: Annotated[str, Meta(max_length=2_000)] = ""
    wall_ms: Annotated[int, Meta(ge=0, le=1 << 62)] = 0


class Deletions:
    """The deletions of a model. They stay in the store, so that a rewind does not bring rows back."""

    def __init__(self, store: Store, model: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._records = Sequence(store, model_folder(model, "deletions"), Deletion, help=_HELP)
        self._clock = clock
        self._read: dict[int, Deletion] = {}

    def ask(self, deletion: Deletion, known: Versions[Known] = ()) -> Deletion:
        """Write a deletion, and return it with its number and time. `known` are the versions of the model."""
        asked = structs.replace(deletion, wall_ms=max(0, self._clock.wall_ms()))
        # Numbers stay taken even if their files were removed.
        return self._records.add(
            lambda seq: structs.replace(asked, seq=seq), above=max(map(obeyed_by, known), default=0)
        )

    def all(self) -> tuple[Deletion, ...]:
        """Return all deletions, in order; raises `VersionDefect` if one is damaged."""
        self._read = {
            number: self._read.get(number) or self._records.read(number) for number in self._records.numbers()
        }
        return tuple(self._read.values())

    def drop(self, known: Versions[Known]) -> None:
        """Remove the deletions that all of these versions, which are those that stay, carry out for good."""
        for deletion in self.all():
            done = [
                deletion.seq <= obeyed_by(entry) and deletion.until_ms <= (entry.watermark_ms or 0) for entry in known
            ]
            if done and all(done):
                self._records.remove(deletion.seq)


def in_force(deletions: Iterable[Deletion], obeyed: float, watermark_ms: int | None) -> dict[str, list[str]]:
    """Return the keys, by table, to remove from a version that follows one that obeys deletions up to a number.

    Examples:
        >>> asked = [Deletion(seq=n, keys={"user": ("%016x" % n,)}, until_ms=100 * n) for n in (1, 2, 3)]
        >>> in_force(asked, 2, 150)
        {'user': ['0000000000000002', '0000000000000003']}
    """
    keys: dict[str, list[str]] = {}
    for deletion in deletions:
        if deletion.seq > obeyed or watermark_ms is None or watermark_ms < deletion.until_ms:
            for table, some in deletion.keys.items():
                keys.setdefault(table, []).extend(some)
    return keys


def obeyed_by(version: Known) -> int:
    """Return the number of the last deletion that a version carries out."""
    return int(version.metrics.get(OBEYED, 0.0))
