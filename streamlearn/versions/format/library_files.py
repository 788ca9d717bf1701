"""Library files: the items and vectors that changed in a version, and all at the end of a chain. It knows no feature.

An item is a row of columns: its key and id, four numbers that decide about later changes, and its features by name. Its
vector is in a file of another kind, since vectors change more often: int8 numbers, and a factor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.errors import VersionDefect
from streamlearn.events.columns import join_rows, take_rows
from streamlearn.versions.format.loading import load_tensors
from streamlearn.versions.format.manifest import FileKind
from streamlearn.versions.format.writer import Committed
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store

__all__ = ["GONE", "NEVER_MS", "STATE", "are_present", "check_library", "check_vectors", "library_in", "vectors_in"]

STATE = {"key": "<u8", "event_ms": "<i8", "origin": "<u8", "written_ms": "<i8", "removed_ms": "<i8"}
"""The columns that every library has, beside ids and features."""
GONE = "gone"
"""The tensor of keys that the parent had, and the version has not."""

NEVER_MS = -(1 << 62)
"""The time of what never happened, such as the removal of an item."""

_Columns = dict[str, npt.NDArray[Any]]


def library_in(store: Store, links: Sequence[Committed]) -> _Columns | None:
    """Return all items at the end of a chain that begins with a base, by key; None if its versions hold no library.

    Raises:
        VersionDefect: A file is damaged, or has other columns than the others.
    """
    return _whole(store, links, "library", check_library)


def vectors_in(store: Store, links: Sequence[Committed]) -> _Columns | None:
    """Return the vectors of all items, as `library_in` does."""
    return _whole(store, links, "vectors", check_vectors)


def are_present(items: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
    """Return which items of a library's columns are in it: they have features, and were not removed for good."""
    removed_ms = items["removed_ms"]
    is_there = (removed_ms == NEVER_MS) | (items["written_ms"] > removed_ms)
    present: npt.NDArray[np.bool_] = is_there & (items["event_ms"] != NEVER_MS)
    return present


def _whole(
    store: Store, links: Sequence[Committed], kind: FileKind, check: Callable[[_Columns, str], None]
) -> _Columns | None:
    parts: list[_Columns] = []
    seen = np.zeros(0, np.uint64)
    for link in reversed(links):
        tensors = load_tensors(store, link, kind)
        if not tensors:
            break
        check(tensors, link.folder)
        gone = tensors.pop(GONE)
        if parts and not _are_alike(tensors, parts[0]):
            names = [", ".join(sorted(each))[:500] for each in (tensors, parts[0])]
            raise defective(
                link.folder, "incompatible", f"its {kind} has {names[0]}; that of later versions {names[1]}"
            )
        parts.append(take_rows(tensors, np.flatnonzero(~np.isin(tensors["key"], seen))))
        if link.manifest.kind != "delta":  # a base and a revert hold all items
            break
        seen = np.union1d(seen, np.concatenate((tensors["key"], gone)))
    if not parts:
        return None
    whole = join_rows(parts)
    return take_rows(whole, np.argsort(whole["key"])) | {GONE: np.zeros(0, np.uint64)}


def _are_alike(some: _Columns, others: _Columns) -> bool:
    return some.keys() == others.keys() and all(some[name].shape[1:] == others[name].shape[1:] for name in some)


def check_library(tensors: Mapping[str, npt.NDArray[Any]], path: str) -> None:
    """Check that columns fit together; raises `VersionDefect` at a path if they do not."""
    for name, dtype in (*STATE.items(), (GONE, "<u8")):
        if name not in tensors or tensors[name].dtype != np.dtype(dtype) or tensors[name].ndim != 1:
            raise _corrupted(path, f"{name!r} is missing, or not {np.dtype(dtype)}")
    rows = len(tensors["key"])
    lengths = dict.fromkeys(tensors, rows) | {GONE: len(tensors[GONE])}
    for name in (name for name in tensors if name.endswith(("[]", "$"))):
        offsets, values = tensors[name], name.rstrip("[]$")
        is_fit = offsets.dtype == np.int64 and offsets.shape == (rows + 1,) and values in tensors
        if not is_fit or offsets[0] != 0 or (np.diff(offsets) < 0).any():
            raise _corrupted(path, f"{name!r} does not fit {rows} items")
        lengths |= {name: rows + 1, values: int(offsets[-1])}
    for name, column in tensors.items():
        if column.shape[:1] != (lengths[name],):
            raise _corrupted(path, f"{name!r} is {column.shape}, expected {lengths[name]} values")
    _check_keys(tensors, path)


def check_vectors(tensors: Mapping[str, npt.NDArray[Any]], path: str) -> None:
    """Check that the vectors of items fit together; raises `VersionDefect` at a path if they do not."""
    kinds = {"key": "<u8", "row": "|i1", "scale": "<f4", GONE: "<u8"}
    if {name: column.dtype for name, column in tensors.items()} != {name: np.dtype(kinds[name]) for name in kinds}:
        raise _corrupted(path, f"vectors have {', '.join(sorted(tensors))[:500]}, not {', '.join(sorted(kinds))}")
    rows = len(tensors["key"])
    if [tensors[name].shape[:1] for name in kinds if name != GONE] != [(rows,)] * 3 or tensors["row"].ndim != 2:
        raise _corrupted(path, f"vectors do not fit {rows} keys")
    if not (np.isfinite(tensors["scale"]) & (tensors["scale"] >= 0)).all():
        raise _corrupted(path, "a vector has a factor that is negative or not finite")
    _check_keys(tensors, path)


def _check_keys(tensors: Mapping[str, npt.NDArray[Any]], path: str) -> None:
    keys = np.concatenate((tensors["key"], tensors[GONE]))
    if len(np.unique(keys)) < len(keys):
        raise _corrupted(path, "a key occurs twice")


def _corrupted(path: str, what: str) -> VersionDefect:
    return defective(path, "corrupted", f"the library of items: {what}")
