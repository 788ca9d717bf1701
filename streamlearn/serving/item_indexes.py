"""ItemIndexes: the items of each version that a node holds: vectors in blocks, and ids. It knows no request."""

from __future__ import annotations

from typing import Any, NamedTuple

from streamlearn.native import native
from streamlearn.versions import Committed, Store, VersionRef, load_tensors
from streamlearn.versions.format.library_files import GONE, check_library, check_vectors
from streamlearn.versions.store.defect import defective

__all__ = ["ItemIndexes", "VersionItems"]


class VersionItems(NamedTuple):
    """The items of a version, as `native.Front.add` takes them."""

    blocks: Any
    ids: Any
    as_of_ms: int | None


class ItemIndexes:
    """Reads the items of versions, each as what it changes of its parent.

    A version shares what it does not change with its parent, and items are what the ref says: a rebuild of the tables
    reads no version again.
    """

    def __init__(self, store: Store, *, dim: int, is_text: bool) -> None:
        self._store, self._dim, self._is_text = store, dim, is_text
        self._versions: dict[VersionRef, VersionItems] = {}

    def of(self, version: VersionRef) -> VersionItems | None:
        """Return the items of a version that was loaded; None if it has none."""
        return self._versions.get(version)

    def load(self, version: Committed, parent: VersionRef | None) -> None:
        """Read a version; see `Hooks.load`.

        Raises:
            VersionDefect: A file is damaged, or does not fit the application.
        """
        if version.ref in self._versions or not version.manifest.of_kind("vectors"):
            return
        is_delta = version.manifest.kind == "delta"  # any other has all items
        none = VersionItems(native.Blocks(self._dim), native.RawIds(self._is_text), None)
        before = self._versions[parent] if is_delta and parent is not None else none
        try:
            ids = self._ids(version, before.ids)
            blocks = self._blocks(version, before.blocks, ids)
        except ValueError as error:
            raise defective(version.folder, "corrupted", f"its items: {error}") from None
        self._versions[version.ref] = VersionItems(blocks, ids, version.manifest.watermark_ms)

    def retire(self, version: VersionRef) -> None:
        """Forget a version; requests under way keep what they read."""
        self._versions.pop(version, None)

    def _ids(self, version: Committed, before: Any) -> Any:
        tensors = load_tensors(self._store, version, "library")
        check_library(tensors, version.folder)
        ids = (tensors["id$"], tensors["id"]) if self._is_text else tensors["id"]
        return before.apply(tensors["key"], ids, tensors[GONE])

    def _blocks(self, version: Committed, before: Any, ids: Any) -> Any:
        tensors = load_tensors(self._store, version, "vectors")
        check_vectors(tensors, version.folder)
        if tensors["row"].shape[1] != self._dim:
            what = f"its vectors have {tensors['row'].shape[1]} numbers, not {self._dim}"
            raise defective(version.folder, "incompatible", what)
        if (key := ids.lacks(tensors["key"])) is not None:
            raise defective(version.folder, "corrupted", f"it has a vector for key {key}, but no item")
        return before.apply(tensors["key"], tensors["row"], tensors["scale"], tensors[GONE])
