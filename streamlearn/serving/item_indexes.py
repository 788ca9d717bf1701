"""ItemIndexes: the items of each version that a node holds: vectors in blocks, ids, features. It knows no request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from streamlearn.events.columns import take_rows
from streamlearn.features import FeatureSpec
from streamlearn.native import native
from streamlearn.versions import Committed, Store, VersionRef, load_tensors
from streamlearn.versions.format.library_files import GONE, are_present, check_library, check_vectors
from streamlearn.versions.store.defect import defective

__all__ = ["ItemIndexes", "VersionItems", "cells_of", "divides_again"]

# A search of fewer vectors takes about as long as that of the nearest cells.
_DIVIDED_MIN = 1 << 16
_TURNOVERS = 4

Tensors: TypeAlias = Mapping[str, npt.NDArray[Any]]


class VersionItems(NamedTuple):
    """The items of a version."""

    blocks: Any
    ids: Any
    as_of_ms: int | None
    probes: int | None = None  # cells that are searched for a user; None: all vectors are
    features: Any = None

    @property
    def found(self) -> tuple[Any, Any, int | None, int | None]:
        """What finds items, as `native.Front.add` takes it."""
        return self.blocks, self.ids, self.as_of_ms, self.probes


def cells_of(items: int) -> int:
    """Return into how many cells so many items are divided; 0 for few, of which all are searched.

    Examples:
        >>> [cells_of(items) for items in (65_535, 65_536, 1_000_000, 10_000_000)]
        [0, 256, 1024, 4096]
    """
    return 0 if items < _DIVIDED_MIN else 1 << round(math.log2(items) / 2)


def divides_again(items: int, cells: int, changed: int) -> bool:
    """Whether items are divided into new cells, `changed` vectors after the last time.

    Vectors move away from centroids that were made for former ones.

    Examples:
        >>> divides_again(65_536, 0, 0), divides_again(200_000, 256, 0), divides_again(200_000, 256, 800_000)
        (True, False, True)
    """
    wanted = cells_of(items)
    return wanted > 0 and (not wanted // 2 <= cells <= wanted * 2 or changed >= _TURNOVERS * items)


class ItemIndexes:
    """Reads the items of versions, each as what it changes of its parent.

    A version shares what it does not change with its parent, and items are what the ref says: a rebuild of the tables
    reads no version again. With `probes`, many items are divided into cells of similar ones.
    """

    def __init__(self, store: Store, spec: FeatureSpec, *, dim: int, probes: int = 0) -> None:
        self._store, self._spec, self._dim, self.probes = store, spec, dim, probes
        self._is_text = spec.slot(spec.item_id).value == "str"
        self._versions: dict[VersionRef, VersionItems] = {}
        self._changed = 0  # vectors since items were divided

    def of(self, version: VersionRef) -> VersionItems | None:
        """Return the items of a version that was loaded; None if it has none."""
        return self._versions.get(version)

    def load(self, version: Committed, parent: VersionRef | None) -> None:
        """Read a version; see `Hooks.load`.

        Raises:
            VersionDefect: A file is damaged, or does not fit the application.
        """
        if version.ref in self._versions or not version.manifest.of_kind("library"):
            return
        is_delta = version.manifest.kind == "delta"  # any other has all items
        none = VersionItems(
            native.Blocks(self._dim),
            native.RawIds(self._is_text),
            None,
            features=native.ItemFeatures(self._forms()),
        )
        before = self._versions[parent] if is_delta and parent is not None else none
        library = load_tensors(self._store, version, "library")
        check_library(library, version.folder)
        try:
            ids = before.ids.apply(library["key"], self._ids(library), library[GONE])
            features = self._features(version, library, before.features)
            blocks = self._divided(self._blocks(version, before.blocks, ids))
        except ValueError as error:
            raise defective(version.folder, "corrupted", f"its items: {error}") from None
        probes = self.probes if blocks.cells and cells_of(len(blocks)) else None
        self._versions[version.ref] = VersionItems(blocks, ids, version.manifest.watermark_ms, probes, features)

    def retire(self, version: VersionRef) -> None:
        """Forget a version; requests under way keep what they read."""
        self._versions.pop(version, None)

    def _ids(self, library: Tensors) -> Any:
        return (library["id$"], library["id"]) if self._is_text else library["id"]

    def _forms(self) -> list[tuple[str, int]]:
        """Return the forms of the columns that describe items, as `native.ItemFeatures` takes them."""
        slots, dense = self._spec.of_library
        many = ["weighted" if slot.pooling == "weighted" else "many" if slot.multi else "one" for slot in slots]
        return [*((form, 0) for form in many), *(("dense", column.width) for column in dense)]

    def _features(self, version: Committed, library: Tensors, before: Any) -> Any:
        """Return what describes the items of the version, without those that are only remembered as removed."""
        slots, dense = self._spec.of_library
        suffixes = {"one": ("",), "many": ("", "[]"), "weighted": ("", "[]", "_weights"), "dense": ("",)}
        names = [*(slot.name for slot in slots), *(column.name for column in dense)]
        forms = zip(names, self._forms(), strict=True)
        paths = [[f"item.{name}{end}" for end in suffixes[form]] for name, (form, _) in forms]
        if missing := [path for of_column in paths for path in of_column if path not in library]:
            raise defective(version.folder, "incompatible", f"its library has no {missing[0]!r}")
        is_there = are_present(library)
        items = take_rows({name: library[name] for name in library if name != GONE}, np.flatnonzero(is_there))
        columns = [[items[path].reshape(-1) for path in of_column] for of_column in paths]
        return before.apply(items["key"], columns, np.concatenate((library[GONE], library["key"][~is_there])))

    def _blocks(self, version: Committed, before: Any, ids: Any) -> Any:
        tensors = load_tensors(self._store, version, "vectors")
        if not tensors:  # of an application that has begun with what another learned
            return before
        check_vectors(tensors, version.folder)
        if tensors["row"].shape[1] != self._dim:
            what = f"its vectors have {tensors['row'].shape[1]} numbers, not {self._dim}"
            raise defective(version.folder, "incompatible", what)
        if (key := ids.lacks(tensors["key"])) is not None:
            raise defective(version.folder, "corrupted", f"it has a vector for key {key}, but no item")
        self._changed += len(tensors["key"])
        return before.apply(tensors["key"], tensors["row"], tensors["scale"], tensors[GONE])

    def _divided(self, blocks: Any) -> Any:
        if not self.probes or not divides_again(len(blocks), blocks.cells, self._changed):
            return blocks
        self._changed = 0
        return blocks.in_cells(cells_of(len(blocks)))
