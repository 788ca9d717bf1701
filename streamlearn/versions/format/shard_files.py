"""Upkeep files: the upkeep state of a shard's tables, and how that of all shards and versions is merged."""

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
    """Write the upkeep of the parts that a shard owns."""
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
    """Return the upkeep of an empty table."""
    return Upkeep({}, 0, np.zeros(PARTS, np.uint64))


def shards_of(manifest: Manifest, table: str, parts: tuple[int, int]) -> list[list[FileEntry]]:
    """Return the upkeep files of a table, grouped by the shards that owned some of the parts, in order of parts."""
    shards: dict[int, list[FileEntry]] = {}
    for entry in manifest.of_kind("upkeep"):
        if entry.table == table and entry.parts[0] < parts[1] and parts[0] < entry.parts[1]:
            shards.setdefault(entry.shard, []).append(entry)
    return sorted(shards.values(), key=lambda files: files[0].parts)


class UpkeepGathered:
    """The upkeep of some parts of one table, merged version by version.

    A page replaces the older one of its part; hands are those of the newest version. `parts` are the first part and
    the one after the last, `before` is the upkeep to start from.
    """

    def __init__(self, parts: tuple[int, int], before: Upkeep) -> None:
        self._begin, self._end = parts
        self._pages = dict(before.pages)
        self._hands = before.hands.copy()
        self._next_part = before.next_part

    def add(self, shards: Iterable[tuple[FileEntry, list[tuple[FileEntry, memoryview]]]], path: str) -> None:
        """Add the files of one version: for each shard an entry and all its files, in the order of their parts.

        Raises:
            VersionDefect: A file is damaged. `path` is the version's folder.
        """
        # After a change of the shards, one old shard that owned some of the parts decides where expiry continues.
        is_first = True
        for entry, files in shards:
            begin, end = max(entry.parts[0], self._begin), min(entry.parts[1], self._end)
            if begin >= end:
                continue
            named = read_bytes(files, path)
            file_path = f"{path}/{entry.path}"
            hands = _numbers(named, "hands", np.dtype("<u8"), file_path)
            if len(hands) != entry.parts[1] - entry.parts[0]:
                raise defective(file_path, "corrupted", f"it has {len(hands)} hands for parts {entry.parts}")
            self._hands[begin:end] = hands[begin - entry.parts[0] : end - entry.parts[0]]
            pages = _pages(named, entry, file_path)
            self._pages |= {part: page for part, page in pages.items() if begin <= part < end}
            next_part = _numbers(named, "next", np.dtype("<u2"), file_path)
            if is_first and len(next_part) == 1 and next_part[0] < PARTS:
                self._next_part, is_first = int(next_part[0]), False

    def upkeep(self) -> Upkeep:
        """Return the merged upkeep."""
        return Upkeep(self._pages, self._next_part, self._hands)


def _numbers(named: dict[str, memoryview], name: str, dtype: np.dtype[Any], path: str) -> Array:
    data = named.get(name)
    if data is None or len(data) % dtype.itemsize:
        problem = "is missing" if data is None else f"has {len(data)} bytes"
        raise defective(path, "corrupted", f"its {name!r} {problem}")
    return np.frombuffer(data, dtype)


def _pages(named: dict[str, memoryview], entry: FileEntry, path: str) -> dict[int, bytes]:
    parts, ends = (_numbers(named, name, np.dtype(kind), path) for name, kind in (("parts", "<u2"), ("ends", "<i8")))
    data = named.get("pages", memoryview(b""))
    begins = np.concatenate([np.zeros(1, np.int64), ends])
    is_whole = len(parts) == len(ends) and begins[-1] == len(data) and bool((np.diff(begins) >= 0).all())
    if not is_whole or any(not entry.parts[0] <= part < entry.parts[1] for part in parts.tolist()):
        raise defective(path, "corrupted", f"its pages of parts {parts[:5].tolist()} end at {ends[-5:].tolist()}")
    spans = zip(parts.tolist(), begins[:-1].tolist(), ends.tolist(), strict=True)
    return {part: bytes(data[begin:end]) for part, begin, end in spans}
