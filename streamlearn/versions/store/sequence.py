"""Sequence: numbered records in a folder of the store. Of two writers of one number, exactly one succeeds."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from msgspec import Struct

from streamlearn.errors import FileMissing, FileTaken
from streamlearn.versions.format.record import decode_record, encode_record
from streamlearn.versions.store.interface import Store

__all__ = ["Sequence"]

_NAME = re.compile(r"([0-9]{12})\.json")
# Records are small; a larger file cannot be one.
_BYTES_MAX = 4 << 20
# Numbers probed one by one before the folder is listed: what a follower misses between two reads.
_PROBES_MAX = 16

Kind = TypeVar("Kind", bound=Struct)


class Sequence(Generic[Kind]):
    """A log of records, numbered from 1 without gaps at its end.

    `help` is the advice in the error of a damaged record.
    """

    def __init__(self, store: Store, folder: str, kind: type[Kind], *, help: str = "") -> None:
        self.store, self.folder = store, folder
        self._kind, self._help = kind, help

    def numbers(self) -> list[int]:
        """List the numbers of the records, in order."""
        matches = (_NAME.fullmatch(entry.name) for entry in self.store.entries(self.folder))
        return sorted(int(match[1]) for match in matches if match)

    def newest(self, since: int = 0) -> tuple[int, Kind] | None:
        """Return the newest record and its number, if it is newer than `since`, which may have been removed.

        Raises:
            VersionDefect: The newest record is damaged. An older one is never returned in its place.
        """
        after = since
        while since and after - since < _PROBES_MAX and self.store.exists(self.path(after + 1)):
            after += 1
        # Records are removed oldest first: while this one exists, so do all newer ones.
        is_removed = after == since and not (since and self.store.exists(self.path(since)))
        if is_removed or after - since >= _PROBES_MAX:
            after = max(self.numbers(), default=0)
        return (after, self.read(after)) if after > since else None

    def read(self, number: int) -> Kind:
        """Read one record; raises `FileMissing`, or `VersionDefect` if it is damaged."""
        path = self.path(number)
        return decode_record(self.store.read(path, bytes_max=_BYTES_MAX), self._kind, path, help=self._help)

    def append(self, number: int, record: Kind) -> None:
        """Write the next record; raises `FileTaken` if another writer wrote that number."""
        path, data = self.path(number), encode_record(record)
        try:
            self.store.create(path, data)
        except FileTaken:
            # It is ours if the reply to the first attempt was lost and the client repeated it.
            try:
                existing = self.store.read(path, bytes_max=_BYTES_MAX)
            except FileMissing:
                existing = memoryview(b"")
            if bytes(existing) != data:
                raise

    def add(self, make: Callable[[int], Kind], above: int = 0) -> Kind:
        """Write the record that `make` makes of its number, and return it; numbers up to `above` stay taken."""
        while True:
            number = 1 + max([above, *self.numbers()])
            with suppress(FileTaken):
                self.append(number, record := make(number))
                return record

    def remove(self, number: int) -> None:
        """Remove an old record."""
        self.store.remove(self.path(number))

    def path(self, number: int) -> str:
        """Return the path of a record."""
        return f"{self.folder}/{number:012d}.json"
