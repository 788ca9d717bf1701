"""Upkeep files: what a shard's table knows beside its rows, and how that of all shards and versions comes together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.table import Upkeep
from streamlearn.versions.format.manifest import PARTS, FileEntry, Manifest
from streamlearn.versions.format.pieces import read_bytes, write_bytes
from streamlearn.versions.format.split import Place
from streamlearn.versions.store.defect import defective

__all__ = ["UpkeepGathered", "no_upkeep", "shards_of", "write_upkeep"]

Array = npt.NDArray[Any]


def write_upkeep(place: Place, entry: FileEntry, upkeep: Upkeep) -> list[FileEntry]:
    """Write what a shard knows of the parts it owns."""
    begin, end = entry.parts
    pages = {part: page for part, page in sorted(upkeep.pages.items()) if begin <= part < end}
    named = {
        "parts": np.array(list(pages), "<u2"),
        "ends": np.cumsum([len(page) for page in pages.values()], dtype="<i8"),
        "hands": np.asarray(upkeep.hands[begin:end], "<u8"),
        "next": np.array([upkeep.next_part], "<u2"),
    }
    raw = {name: numbers.tobytes() for name, numbers in named.items()}
    return write_bytes(place, entry, raw | {"pages": b"".join(pages.values())})


def no_upkeep() -> Upkeep:
    """What a table knows that has met nothing."""
    return Upkeep({}, 0, np.zeros(PARTS, np.uint64))


def shards_of(manifest: Manifest, table: str, parts: tuple[int, int]) -> list[list[FileEntry]]:
    """The upkeep files of a table in a version, by the shards that had some of these parts, in the order of theirs."""
    shards: dict[int, list[FileEntry]] = {}
    for entry in manifest.of_kind("upkeep"):
        if entry.table == table and entry.parts[0] < parts[1] and parts[0] < entry.parts[1]:
            shards.setdefault(entry.shard, []).append(entry)
    return sorted(shards.values(), key=lambda files: files[0].parts)


class UpkeepGathered:
    """Upkeep of one table, version after version, of the parts that are wanted.

    A page takes the place of the older one of its part; hands are those of the newest version.

    Args:
        parts: The parts: the first, and the one after the last.
        before: What is known already.
    """

    def __init__(self, parts: tuple[int, int], before: Upkeep) -> None:
        self._begin, self._end = parts
        self._pages = dict(before.pages)
        self._hands = before.hands.copy()
        self._next_part = before.next_part

    def add(self, shards: Iterable[tuple[FileEntry, list[tuple[FileEntry, memoryview]]]], path: str) -> None:
        """Take the files of one version.

        Args:
            shards: Of each shard an entry and all its files, in the order of the parts they own.
            path: The version's folder, for errors.

        Raises:
            VersionDefect: A file is not what it is to be.
        """
        # Where shards are cut anew, one of the old ones that had some of the parts says where expiry goes on.
        is_first = True
        for entry, files in shards:
            begin, end = max(entry.parts[0], self._begin), min(entry.parts[1], self._end)
            if begin >= end:
                continue
            found = read_bytes(files, path)
            where = f"{path}/{entry.path}"
            hands = _numbers(found, "hands", np.dtype("<u8"), where)
            if len(hands) != entry.parts[1] - entry.parts[0]:
                raise defective(where, "corrupted", f"it has {len(hands)} hands for parts {entry.parts}")
            self._hands[begin:end] = hands[begin - entry.parts[0] : end - entry.parts[0]]
            pages = _pages(found, entry, where)
            self._pages |= {part: page for part, page in pages.items() if begin <= part < end}
            following = _numbers(found, "next", np.dtype("<u2"), where)
            if is_first and len(following) == 1 and following[0] < PARTS:
                self._next_part, is_first = int(following[0]), False

    def upkeep(self) -> Upkeep:
        """All of it."""
        return Upkeep(self._pages, self._next_part, self._hands)


def _numbers(found: dict[str, memoryview], name: str, dtype: np.dtype[Any], path: str) -> Array:
    data = found.get(name)
    if data is None or len(data) % dtype.itemsize:
        said = "is missing" if data is None else f"has {len(data)} bytes"
        raise defective(path, "corrupted", f"{name!r} of it {said}")
    return np.frombuffer(data, dtype)


def _pages(found: dict[str, memoryview], entry: FileEntry, path: str) -> dict[int, bytes]:
    parts, ends = (_numbers(found, name, np.dtype(kind), path) for name, kind in (("parts", "<u2"), ("ends", "<i8")))
    data = found.get("pages", memoryview(b""))
    begins = np.concatenate([np.zeros(1, np.int64), ends])
    is_whole = len(parts) == len(ends) and begins[-1] == len(data) and bool((np.diff(begins) >= 0).all())
    if not is_whole or any(not entry.parts[0] <= part < entry.parts[1] for part in parts.tolist()):
        raise defective(path, "corrupted", f"its pages of parts {parts[:5].tolist()} end at {ends[-5:].tolist()}")
    spans = zip(parts.tolist(), begins[:-1].tolist(), ends.tolist(), strict=True)
    return {part: bytes(data[begin:end]) for part, begin, end in spans}
