"""Library files: the items that changed in a version, and all items at the end of a chain. It knows no feature.

An item is a row of columns: its key and id, four numbers that decide about later changes, and its features by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.errors import VersionDefect
from streamlearn.events.columns import join_rows, take_rows
from streamlearn.versions.format.loading import load_tensors
from streamlearn.versions.format.writer import Committed
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store

__all__ = ["GONE", "STATE", "check_library", "library_in"]

STATE = {"key": "<u8", "event_ms": "<i8", "origin": "<u8", "told_ms": "<i8", "removed_ms": "<i8"}
"""The columns that every library has, beside ids and features."""
GONE = "gone"
"""The tensor of keys that the parent had, and the version has not."""

_Columns = dict[str, npt.NDArray[Any]]


def library_in(store: Store, links: Sequence[Committed]) -> _Columns | None:
    """Return all items at the end of a chain that begins with a base, by key; None if its versions hold no library.

    Raises:
        VersionDefect: A file is damaged, or has other columns than the others.
    """
    parts: list[_Columns] = []
    seen = np.zeros(0, np.uint64)
    for link in reversed(links):
        tensors = load_tensors(store, link, "library")
        if not tensors:
            break
        check_library(tensors, link.folder)
        gone = tensors.pop(GONE)
        if parts and parts[0].keys() != tensors.keys():
            names = [", ".join(sorted(each))[:500] for each in (tensors, parts[0])]
            raise defective(
                link.folder, "incompatible", f"its items have {names[0]}; those of later versions {names[1]}"
            )
        parts.append(take_rows(tensors, np.flatnonzero(~np.isin(tensors["key"], seen))))
        if link.manifest.kind != "delta":  # a base and a revert hold all items
            break
        seen = np.union1d(seen, np.concatenate((tensors["key"], gone)))
    if not parts:
        return None
    whole = join_rows(parts)
    return take_rows(whole, np.argsort(whole["key"])) | {GONE: np.zeros(0, np.uint64)}


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
    keys = np.concatenate((tensors["key"], tensors[GONE]))
    if len(np.unique(keys)) < len(keys):
        raise _corrupted(path, "a key occurs twice")


def _corrupted(path: str, what: str) -> VersionDefect:
    return defective(path, "corrupted", f"the library of items: {what}")
