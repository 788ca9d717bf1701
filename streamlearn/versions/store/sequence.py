"""Sequence: numbered records in a folder of the store, each created once; of two who write a number, one succeeds."""

from __future__ import annotations

import re
from typing import Generic, TypeVar

from msgspec import Struct

from streamlearn.errors import FileMissing, FileTaken
from streamlearn.versions.format.record import decode_record, encode_record
from streamlearn.versions.store.interface import Store

__all__ = ["Sequence"]

_NAME = re.compile(r"([0-9]{12})\.json")
# A record is small; a larger file is none.
_BYTES_MAX = 4 << 20
# Numbers looked at one by one before the folder is listed: what a follower misses between two looks.
_PROBES_MAX = 16

Kind = TypeVar("Kind", bound=Struct)


class Sequence(Generic[Kind]):
    """A log of records, numbered from 1 on without gaps at its end.

    Args:
        store: Where.
        folder: The folder of the log.
        kind: What its records are.
        help: What to do about one that is damaged.
    """

    def __init__(self, store: Store, folder: str, kind: type[Kind], *, help: str = "") -> None:
        self.store, self.folder = store, folder
        self._kind, self._help = kind, help

    def numbers(self) -> list[int]:
        """The numbers there are, in order."""
        found = (_NAME.fullmatch(entry.name) for entry in self.store.entries(self.folder))
        return sorted(int(one[1]) for one in found if one)

    def newest(self, since: int = 0) -> tuple[int, Kind] | None:
        """The newest record, if it is after one that is known already; which may be forgotten by now.

        Raises:
            VersionDefect: It is damaged. An older one is never taken for it.
        """
        after = since
        while since and after - since < _PROBES_MAX and self.store.exists(self._path(after + 1)):
            after += 1
        # Old records are forgotten in their order: while this one is there, so are all that were written after it.
        is_forgotten = after == since and not (since and self.store.exists(self._path(since)))
        if is_forgotten or after - since >= _PROBES_MAX:
            after = max(self.numbers(), default=0)
        return (after, self.read(after)) if after > since else None

    def read(self, number: int) -> Kind:
        """A record.

        Raises:
            FileMissing: There is none of that number.
            VersionDefect: It is damaged.
        """
        path = self._path(number)
        return decode_record(self.store.read(path, bytes_max=_BYTES_MAX), self._kind, path, help=self._help)

    def append(self, number: int, record: Kind) -> None:
        """Write the next record.

        Raises:
            FileTaken: Somebody else wrote that number.
        """
        path, data = self._path(number), encode_record(record)
        try:
            self.store.create(path, data)
        except FileTaken:
            # Ours, if the answer to the first attempt was lost, and it was made again.
            if bytes(self._raw(path)) != data:
                raise

    def remove(self, number: int) -> None:
        """Forget an old record."""
        self.store.remove(self._path(number))

    def _raw(self, path: str) -> memoryview:
        try:
            return self.store.read(path, bytes_max=_BYTES_MAX)
        except FileMissing:
            return memoryview(b"")

    def _path(self, number: int) -> str:
        return f"{self.folder}/{number:012d}.json"
