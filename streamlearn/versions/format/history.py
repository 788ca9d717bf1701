"""History: the published versions of a model, from the newest back, with the verdict on each.

It reads manifests and verdicts, each once, and no other file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType, structs

from streamlearn.errors import FileMissing, VersionDefect
from streamlearn.versions.format.record import VersionRef, read_signed
from streamlearn.versions.format.verdict import read_verdict
from streamlearn.versions.format.version_summary import Known, Outcome
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.layout import SHAPES, VersionFolder, version_folder, version_folders

__all__ = ["History"]

_Key: TypeAlias = tuple[int, int]
"""Run and version."""


class _File(Struct):
    kind: str
    rows: int
    bytes: int


class _Manifest(Struct):
    """The fields of a manifest that a summary needs."""

    model: str
    run: int
    version: int
    kind: Literal["base", "delta", "revert"]
    written_wall_ms: int
    files: tuple[_File, ...]
    format: int
    parent: VersionRef | None = None
    stands_for: VersionRef | None = None
    content_of: VersionRef | None = None
    graph: str | None = None
    watermark_ms: int | None = None
    metrics: dict[str, float] = {}
    check: str | UnsetType = UNSET


class History:
    """The published versions of a model. A later `read` reads only new versions.

    `known` are summaries from elsewhere, such as the registry. One is used only if its child confirms it.
    """

    def __init__(self, store: Store, model: str, known: Iterable[Known] = ()) -> None:
        self._store, self._model = store, model
        # Whether a version is complete depends on what else exists now.
        self._known: dict[_Key, Known] = {
            _key(entry.ref): structs.replace(entry, lacks="") for entry in known if entry.outcome is not None
        }
        self._unconfirmed, self._told = set(self._known), set(self._known)
        self._bases: set[VersionFolder] = set()

    def read(self) -> tuple[Known, ...]:
        """Read all versions of the history, oldest first.

        A damaged manifest or verdict makes its version, and those that need it, incomplete: `Known.lacks` names it, and
        `verify` advises. An unreadable verdict counts as none, for it may have been a rejection.

        Raises:
            StoreUnreachable: The store did not answer.
        """
        folders = frozenset(filter(self._is_usable, version_folders(self._store, self._model)))
        keys = sorted({(folder.run, folder.version) for folder in folders}, reverse=True)
        present = set(keys)
        key = next((each for each in keys if self._is_committed(folders, each)), None)
        entries: list[Known] = []
        parent: VersionRef | None = None
        while key is not None:
            self._confirm(key, parent)
            entry = self._entry(folders, key)
            parent = None if entry is None else entry.parent
            if entry is not None:
                entries.append(entry)
            if parent is not None:
                is_present = _key(parent) in present
                key = _key(parent) if is_present else _before(keys, _key(parent))
                parent = parent if is_present else None
            else:
                key = None if entry is not None and entry.kind == "base" else _before(keys, key)
        return tuple(_with_lacks(entries[::-1], folders, self._model))

    def distrust(self, versions: range) -> bool:
        """Drop given summaries of these versions: `read` takes them from the store. Return whether there were any."""
        dropped = {key for key in self._told if key[1] in versions}
        self._told -= dropped
        self._unconfirmed -= dropped
        for key in dropped:
            self._known.pop(key, None)
        return bool(dropped)

    def folder(self, ref: VersionRef) -> str:
        """Return the folder of a version's delta, or of its base; raises `VersionDefect` if it has neither."""
        for shape in ("deltas", "bases"):
            folder = version_folder(self._model, shape, ref.version, ref.run)
            if self._store.exists(f"{folder}/manifest.json"):
                return folder
        raise defective(self._model, "missing", f"version {ref} does not exist")

    def _is_usable(self, folder: VersionFolder) -> bool:
        """Whether a folder is of a delta, or of a base that was written to its end: another one makes nothing whole."""
        if folder.shape != "bases" or folder in self._bases:
            return True
        is_written = self._store.exists(folder.manifest)
        if is_written:
            self._bases.add(folder)
        return is_written

    def _confirm(self, key: _Key, child_says: VersionRef | None) -> None:
        """Drop a summary of a version if its child refers to another one of its number; a given one also without child.

        After the store was restored from an older copy, a run may use a number again.
        """
        entry = self._known.get(key)
        if entry is not None and entry.ref != child_says and (child_says is not None or key in self._unconfirmed):
            self._unconfirmed.discard(key)
            del self._known[key]

    def _is_committed(self, folders: frozenset[VersionFolder], key: _Key) -> bool:
        if key in self._known:
            return True
        shapes = (VersionFolder(*key, shape, self._model) for shape in SHAPES)
        return any(folder in folders and self._store.exists(folder.manifest) for folder in shapes)

    def _entry(self, folders: frozenset[VersionFolder], key: _Key) -> Known | None:
        """Return the summary of a version; None if it is not committed."""
        if key in self._known:
            return self._known[key]
        damage: VersionDefect | None = None
        for shape in SHAPES:
            folder = VersionFolder(*key, shape, self._model)
            if folder not in folders:
                continue
            try:
                entry = self._read(folder)
            except VersionDefect as error:
                damage = error
                continue
            if entry is not None:
                if entry.outcome is not None:
                    self._known[key] = entry
                return entry
        if damage is None:
            return None
        run, version = key
        return Known(ref=VersionRef(version=version, run=run, sha256="0" * 64), kind="delta", lacks=_text(damage))

    def _read(self, folder: VersionFolder) -> Known | None:
        try:
            manifest, sha256 = read_signed(self._store, folder.manifest, _Manifest)
        except FileMissing:
            return None
        if (manifest.model, manifest.run, manifest.version) != (self._model, folder.run, folder.version):
            what = f"its manifest is of version {manifest.version} of run {manifest.run} of {manifest.model!r}"
            raise defective(folder.path, "reordered", what)
        own = VersionRef(version=manifest.version, run=manifest.run, sha256=sha256)
        try:
            outcome, lacks = self._outcome(folder), ""
        except VersionDefect as error:
            outcome, lacks = None, _text(error)
        return Known(
            ref=manifest.stands_for or own,
            kind=manifest.kind,
            parent=manifest.parent,
            content_of=manifest.content_of,
            graph=manifest.graph,
            written_wall_ms=manifest.written_wall_ms,
            watermark_ms=manifest.watermark_ms,
            rows=sum(file.rows for file in manifest.files if file.kind == "rows"),
            gone=sum(file.rows for file in manifest.files if file.kind == "gone"),
            bytes=sum(file.bytes for file in manifest.files),
            metrics=manifest.metrics,
            outcome=outcome,
            lacks=lacks,
        )

    def _outcome(self, folder: VersionFolder) -> Outcome | None:
        """Return the judge's outcome, from the shape the version had when it was judged."""
        for shape in SHAPES:
            verdict = read_verdict(self._store, version_folder(self._model, shape, folder.version, folder.run))
            if verdict is not None:
                return verdict.outcome
        return None


def _key(ref: VersionRef) -> _Key:
    return ref.run, ref.version


def _before(keys: list[_Key], key: _Key) -> _Key | None:
    """Return where the history continues if a parent is missing: earlier in its run, else in the run before."""
    return next((each for each in keys if each < key and each[1] < key[1]), None)


def _with_lacks(entries: list[Known], folders: frozenset[VersionFolder], model: str) -> Iterable[Known]:
    """Add to each version what is missing to read it."""
    lacks: dict[_Key, tuple[VersionRef, str]] = {}
    for entry in entries:
        key = _key(entry.ref)
        has_delta, has_base = (VersionFolder(*key, shape, model) in folders for shape in SHAPES)
        missing = entry.lacks
        if not missing and not has_base:
            missing = _missing_parent(entry, lacks) if has_delta else f"version {entry.version} is gone"
        lacks[key] = entry.ref, missing
        yield structs.replace(entry, lacks=missing)


def _missing_parent(entry: Known, lacks: dict[_Key, tuple[VersionRef, str]]) -> str:
    parent = entry.parent
    if parent is None:
        return ""
    present, missing = lacks.get(_key(parent), (None, ""))
    # With a damaged manifest, it is unknown whether that version is the parent.
    return missing if missing or present == parent else f"version {parent.version}, which it follows, is missing"


def _text(defect: VersionDefect) -> str:
    return f"{defect.path} ({defect.defect})"
