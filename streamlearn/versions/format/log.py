"""Log: the versions of a model in a store, and which run's history prevails. It opens only manifests.

Runs are fencing numbers. A version that a run wrote after a newer run had taken over is outside the history. A newer
run takes over at the parent of its first version.
"""

from __future__ import annotations

from bisect import bisect_left

from streamlearn.errors import FileMissing, Oversize, VersionDefect
from streamlearn.versions.format.coverage import check_manifest
from streamlearn.versions.format.manifest import Manifest, decode_manifest
from streamlearn.versions.format.record import read_signed
from streamlearn.versions.format.writer import Committed
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.layout import MANIFEST_NAME, Shape, VersionFolder, version_folders

__all__ = ["Log", "read_manifest"]


class Log:
    """A listing of the folders of a model's versions.

    Attributes:
        folders: Deltas and bases, with and without a manifest, by run and version.
    """

    def __init__(self, store: Store, model: str) -> None:
        self.store, self.model = store, model
        self.folders = version_folders(store, model)
        self._folder_set = frozenset(self.folders)
        self._versions: dict[VersionFolder, Committed | None] = {}

    def folder(self, shape: Shape, version: int, run: int) -> VersionFolder | None:
        """Return the folder of a version in one shape, if it exists."""
        folder = VersionFolder(run, version, shape, self.model)
        return folder if folder in self._folder_set else None

    def between(self, run: int, after: int, before: int) -> list[VersionFolder]:
        """Return the folders of a run with versions between two others, exclusive."""
        begin = bisect_left(self.folders, (run, after + 1), key=_key)
        return self.folders[begin : bisect_left(self.folders, (run, before), key=_key)]

    def read(self, folder: VersionFolder) -> Committed | None:
        """Return the version of a folder, or None if it is not committed; raises `VersionDefect` for a bad manifest."""
        if folder not in self._versions:
            self._versions[folder] = self._read(folder)
        return self._versions[folder]

    def newest(self) -> VersionFolder | None:
        """Return the newest version of the newest run that committed one.

        Its manifest is not read: if it is damaged, the versions before it can still be found.
        """
        return next((folder for folder in reversed(self.folders) if self.store.exists(folder.manifest)), None)

    def superseded(self) -> list[VersionFolder]:
        """Return the committed versions outside the history, written after a newer run had taken over."""
        last_versions = self._last_versions()
        late = (folder for folder in self.folders if folder.version > last_versions.get(folder.run, 0))
        return [folder for folder in late if self.store.exists(folder.manifest)]

    def is_superseded(self, folder: VersionFolder) -> bool:
        """Return whether a newer run had taken over before this version."""
        return folder.version > self._last_versions().get(folder.run, 0)

    def _last_versions(self) -> dict[int, int]:
        """Return for each run of the history its last version in it."""
        newest = self.newest()
        last_versions: dict[int, int] = {}
        if newest is None:
            return last_versions
        run, last = newest.run, newest.version
        while True:
            last_versions[run] = last
            first = self._first_of(run, last)
            parent = first.manifest.parent if first is not None else None
            if first is not None and parent is None:
                return last_versions
            last = last if parent is None else parent.version
            if parent is not None and parent.run < run:
                run = parent.run
                continue
            # The first versions of this run were swept or are damaged, so the run before it can only be guessed.
            older = [folder.run for folder in self.folders if folder.run < run]
            if not older:
                return last_versions
            run = max(older)

    def _first_of(self, run: int, last: int) -> Committed | None:
        """Return the first version of a run up to `last`, past damaged manifests, but not past unsigned ones."""
        for folder in self.between(run, 0, last + 1):
            try:
                version = self.read(folder)
            except VersionDefect as error:
                if error.defect == "unsigned":
                    raise
                continue
            if version is not None:
                return version
        return None

    def _read(self, folder: VersionFolder) -> Committed | None:
        try:
            manifest, sha256 = read_signed(self.store, folder.manifest, Manifest)
        except FileMissing:
            return None
        if manifest.model != self.model:
            what = f"it holds a version of model {manifest.model!r}, not {self.model!r}"
            raise defective(folder.path, "foreign", what)
        if manifest.folder != folder.path:
            raise self._misplaced(folder, manifest.folder)
        check_manifest(manifest, folder.manifest)
        return Committed(folder.path, manifest, sha256)

    def _misplaced(self, folder: VersionFolder, named: str) -> VersionDefect:
        """Explain a folder with the manifest of another: it was copied or exchanged."""
        try:
            data = self.store.read(f"{named}/{MANIFEST_NAME}", bytes_max=self.store.loading.manifest_bytes_max)
            is_copy = decode_manifest(data, named).folder == named
        except (FileMissing, Oversize, VersionDefect):
            is_copy = False
        return defective(folder.path, "duplicate" if is_copy else "reordered", f"its manifest says it is {named}")


def read_manifest(store: Store, folder: str) -> Manifest:
    """Read the manifest in a version's folder; raises `VersionDefect` if it is missing, damaged or unsigned."""
    try:
        return read_signed(store, f"{folder}/{MANIFEST_NAME}", Manifest)[0]
    except FileMissing:
        raise defective(folder, "uncommitted", "its manifest is missing") from None


def _key(folder: VersionFolder) -> tuple[int, int]:
    return folder.run, folder.version
