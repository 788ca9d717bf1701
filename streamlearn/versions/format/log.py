"""Log: which versions of a model are in a store, and which run's history prevails. It opens no file but manifests.

Runs are fencing numbers: what a run wrote after a newer run had taken over from it is not of the history. A newer run
takes over at the parent of its first version.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left

from streamlearn.errors import FileMissing, Oversize, VersionDefect
from streamlearn.versions.format.coverage import check_manifest
from streamlearn.versions.format.manifest import Manifest, decode_manifest
from streamlearn.versions.format.writer import Committed
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.layout import MANIFEST_NAME, Shape, VersionFolder, parse_folder, shape_folder
from streamlearn.versions.store.settings import LoadSettings, checked

__all__ = ["Log", "read_manifest"]

_SHAPES: tuple[Shape, ...] = ("deltas", "bases")


class Log:
    """The folders of a model's versions as they were when they were listed.

    Args:
        store: Where.
        model: Of which model.
        settings: Limits.

    Attributes:
        folders: Of deltas and bases, with and without a manifest, by run and version.
    """

    def __init__(self, store: Store, model: str, settings: LoadSettings | None = None) -> None:
        self.store, self.model, self.settings = store, model, checked(settings or store.loading)
        found = [
            parse_folder(model, shape, entry.name)
            for shape in _SHAPES
            for entry in store.entries(shape_folder(model, shape))
            if entry.is_folder
        ]
        self.folders = sorted(one for one in found if one is not None)
        self._known = frozenset(self.folders)
        self._read: dict[VersionFolder, Committed | None] = {}

    def folder(self, shape: Shape, version: int, run: int) -> VersionFolder | None:
        """The folder of a version in one of its shapes."""
        wanted = VersionFolder(run, version, shape, self.model)
        return wanted if wanted in self._known else None

    def between(self, run: int, after: int, before: int) -> list[VersionFolder]:
        """The folders of a run with versions between two others."""
        begin = bisect_left(self.folders, (run, after + 1), key=_place)
        return self.folders[begin : bisect_left(self.folders, (run, before), key=_place)]

    def read(self, folder: VersionFolder) -> Committed | None:
        """The version of a folder; None when it is not committed.

        Raises:
            VersionDefect: Its manifest is not what it is to be.
        """
        if folder not in self._read:
            self._read[folder] = self._committed(folder)
        return self._read[folder]

    def newest(self) -> VersionFolder | None:
        """The newest version of the history: of the newest run that committed one, the newest.

        Its manifest is not read: where it is damaged, the versions before it can still be found.
        """
        return next((one for one in reversed(self.folders) if self.store.exists(one.manifest)), None)

    def superseded(self) -> list[VersionFolder]:
        """Committed versions that are not of the history, since a newer run had taken over."""
        limits = self._limits()
        late = (one for one in self.folders if one.version > limits.get(one.run, 0))
        return [one for one in late if self.store.exists(one.manifest)]

    def is_superseded(self, folder: VersionFolder) -> bool:
        """Whether a newer run had taken over before this version."""
        return folder.version > self._limits().get(folder.run, 0)

    def _limits(self) -> dict[int, int]:
        """For each run of the history, its last version that is of it."""
        newest = self.newest()
        limits: dict[int, int] = {}
        if newest is None:
            return limits
        run, last = newest.run, newest.version
        while True:
            limits[run] = last
            first = self._first_of(run, last)
            parent = first.manifest.parent if first is not None else None
            if first is not None and parent is None:
                return limits
            last = last if parent is None else parent.version
            if parent is not None and parent.run < run:
                run = parent.run
                continue
            # The beginning of this run is swept away, so it is not known from whom it took over.
            older = [one.run for one in self.folders if one.run < run]
            if not older:
                return limits
            run = max(older)

    def _first_of(self, run: int, last: int) -> Committed | None:
        mine = self.between(run, 0, last + 1)
        return next((found for one in mine if (found := self.read(one)) is not None), None)

    def _committed(self, folder: VersionFolder) -> Committed | None:
        try:
            data = self.store.read(folder.manifest, bytes_max=self.settings.manifest_bytes_max)
        except FileMissing:
            return None
        except Oversize as error:
            raise defective(folder.manifest, "corrupted", error.message) from None
        manifest = decode_manifest(data, folder.manifest)
        self.store.signatures.check(data, folder.manifest)
        if manifest.model != self.model:
            raise defective(
                folder.path, "foreign", f"it holds a version of model {manifest.model!r}, not {self.model!r}"
            )
        if manifest.folder != folder.path:
            raise self._misplaced(folder, manifest.folder)
        check_manifest(manifest, folder.manifest)
        return Committed(folder.path, manifest, hashlib.sha256(data).hexdigest())

    def _misplaced(self, folder: VersionFolder, said: str) -> VersionDefect:
        """A folder with another one's manifest: copied there, or exchanged."""
        try:
            data = self.store.read(f"{said}/{MANIFEST_NAME}", bytes_max=self.settings.manifest_bytes_max)
            is_twice = decode_manifest(data, said).folder == said
        except (FileMissing, Oversize, VersionDefect):
            is_twice = False
        return defective(folder.path, "duplicate" if is_twice else "reordered", f"its manifest says it is {said}")


def read_manifest(store: Store, folder: str, settings: LoadSettings | None = None) -> Manifest:
    """The manifest in a version's folder.

    Raises:
        VersionDefect: It is not there, or not what it is to be.
    """
    path, limits = f"{folder}/{MANIFEST_NAME}", checked(settings or store.loading)
    try:
        data = store.read(path, bytes_max=limits.manifest_bytes_max)
    except FileMissing:
        raise defective(folder, "uncommitted", "its manifest is missing") from None
    except Oversize as error:
        raise defective(path, "corrupted", error.message) from None
    manifest = decode_manifest(data, path)
    store.signatures.check(data, path)
    return manifest


def _place(folder: VersionFolder) -> tuple[int, int]:
    return folder.run, folder.version
