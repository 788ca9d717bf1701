"""VectorOwners: whether each vector of a version is of an item of its library, and each item has one.

It follows versions from parent to child, and knows of items only their keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamlearn.errors import VersionDefect
from streamlearn.versions.format.library_files import GONE, are_present
from streamlearn.versions.format.loading import load_tensors
from streamlearn.versions.format.manifest import VersionRef
from streamlearn.versions.format.writer import Committed
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store

__all__ = ["ownerless_vectors"]

_Keys = npt.NDArray[np.uint64]


class _VectorOwners(NamedTuple):
    """The keys of items, and those of vectors, of one version; ascending."""

    items: _Keys
    vectors: _Keys

    def after(self, store: Store, link: Committed) -> _VectorOwners:
        """Return those of a version, given those of its parent."""
        items, vectors = (load_tensors(store, link, kind) for kind in ("library", "vectors"))
        changed = np.concatenate((items["key"], items[GONE]))
        now = _replaced(self.items, changed, items["key"][are_present(items)])
        if not vectors:
            return _VectorOwners(now, self.vectors)
        changed = np.concatenate((vectors["key"], vectors[GONE]))
        return _VectorOwners(now, _replaced(self.vectors, changed, vectors["key"]))


def ownerless_vectors(store: Store, links: Sequence[Committed]) -> list[VersionDefect]:
    """Return a defect for each version with a vector but no item, or an item but no vector.

    Parents come before their children. A version whose files or whose parent's files are damaged is left out.
    """
    none = _VectorOwners(np.zeros(0, np.uint64), np.zeros(0, np.uint64))
    children = Counter(link.manifest.parent for link in links if link.manifest.kind == "delta")
    owners: dict[VersionRef, _VectorOwners] = {}
    defects: list[VersionDefect] = []
    for link in links:
        manifest = link.manifest
        is_delta = manifest.kind == "delta"  # any other has all items
        before = owners.get(manifest.parent) if is_delta and manifest.parent is not None else none
        if is_delta and manifest.parent is not None:
            children[manifest.parent] -= 1
            if not children[manifest.parent]:
                owners.pop(manifest.parent, None)
        if before is None or not manifest.of_kind("library"):
            continue
        try:
            owners[link.ref] = now = before.after(store, link)
        except (VersionDefect, KeyError, ValueError):  # named where its files are read
            continue
        if manifest.of_kind("vectors") and not np.array_equal(now.items, now.vectors):
            for some, others, what in (
                (now.vectors, now.items, "{} of its vectors have no item, the first key {}"),
                (now.items, now.vectors, "{} of its items have no vector, the first key {}"),
            ):
                if len(without := np.setdiff1d(some, others)):
                    defects.append(defective(link.folder, "corrupted", what.format(len(without), without[0])))
        if not children[link.ref]:
            del owners[link.ref]
    return defects


def _replaced(keys: _Keys, gone: _Keys, new: _Keys) -> _Keys:
    """Return ascending keys without some, and with others; few keys cost little, however many there are."""
    at = np.searchsorted(keys, gone)
    is_there = at < len(keys)
    is_there[is_there] = keys[at[is_there]] == gone[is_there]
    left, added = np.delete(keys, at[is_there]), np.sort(new)
    return np.insert(left, np.searchsorted(left, added), added)
