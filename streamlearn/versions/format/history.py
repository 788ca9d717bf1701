"""History: the versions of a model that were published, from the newest back, with what the judge said of each.

It reads heads of manifests and no other file, each once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal

from msgspec import UNSET, Struct, UnsetType, structs

from streamlearn.errors import FileMissing, Oversize, VersionDefect
from streamlearn.versions.format.record import VersionRef, decode_record
from streamlearn.versions.format.verdict import read_verdict
from streamlearn.versions.format.version_summary import Known, Outcome
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.layout import SHAPES, VersionFolder, parse_folder, shape_folder, version_folder
from streamlearn.versions.store.settings import LoadSettings, checked

__all__ = ["History"]


class _File(Struct):
    kind: str
    rows: int
    bytes: int


class _Manifest(Struct):
    """What is kept of a manifest."""

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
    """The published versions of a model; reading it again costs what is new.

    Args:
        store: Where they are.
        model: Whose they are.
        known: What is known of some already, such as what the registry keeps.
        limits: Limits of reading.
    """

    def __init__(
        self, store: Store, model: str, known: Iterable[Known] = (), *, limits: LoadSettings | None = None
    ) -> None:
        self._store, self._model, self._limits = store, model, checked(limits or store.loading)
        # What a version lacks depends on what else is there now.
        self._known = {
            (one.ref.run, one.version): structs.replace(one, lacks="") for one in known if one.outcome is not None
        }
        self._given = set(self._known)

    def read(self) -> tuple[Known, ...]:
        """All versions of the history, oldest first.

        A damaged manifest or verdict makes its version, and those that need it, not whole: `Known.lacks` names it, and
        `verify` says what to do. A verdict that cannot be read may have been a rejection.

        Raises:
            StoreUnreachable: The store did not answer.
        """
        folders = self._folders()
        found: list[Known] = []
        there = {(one.run, one.version) for one in folders}
        places = sorted(there, reverse=True)
        at = next((place for place in places if self._is_committed(folders, place)), None)
        parent: VersionRef | None = None
        while at is not None:
            self._doubt(at, parent)
            one = self._one(folders, at)
            parent = None if one is None else one.parent
            if one is not None:
                found.append(one)
            if parent is not None:
                place = (parent.run, parent.version)
                at = place if place in there else _before(places, place)
                parent = parent if at == place else None
            else:
                at = None if one is not None and one.kind == "base" else _before(places, at)
        return tuple(_with_lacks(found[::-1], folders, self._model))

    def folder(self, ref: VersionRef) -> str:
        """Where a version is: its delta, or the base that stands for it.

        Raises:
            VersionDefect: It is in neither place.
        """
        for shape in ("deltas", "bases"):
            folder = version_folder(self._model, shape, ref.version, ref.run)
            if self._store.exists(f"{folder}/manifest.json"):
                return folder
        raise defective(self._model, "missing", f"version {ref} does not exist")

    def _folders(self) -> frozenset[VersionFolder]:
        listed = (
            parse_folder(self._model, shape, entry.name)
            for shape in SHAPES
            for entry in self._store.entries(shape_folder(self._model, shape))
            if entry.is_folder
        )
        return frozenset(one for one in listed if one is not None)

    def _doubt(self, place: tuple[int, int], said: VersionRef | None) -> None:
        """Forget what was given of a version, unless the one that follows it says the same."""
        if place in self._given and (said is None or self._known[place].ref != said):
            self._given.discard(place)
            del self._known[place]

    def _is_committed(self, folders: frozenset[VersionFolder], place: tuple[int, int]) -> bool:
        if place in self._known:
            return True
        mine = (VersionFolder(*place, shape, self._model) for shape in SHAPES)
        return any(one in folders and self._store.exists(one.manifest) for one in mine)

    def _one(self, folders: frozenset[VersionFolder], place: tuple[int, int]) -> Known | None:
        """What is known of a version; None when it is not committed."""
        if place in self._known:
            return self._known[place]
        damaged: VersionDefect | None = None
        for shape in SHAPES:
            folder = VersionFolder(*place, shape, self._model)
            if folder not in folders:
                continue
            try:
                found = self._read(folder)
            except VersionDefect as error:
                damaged = error
                continue
            if found is not None:
                if found.outcome is not None:
                    self._known[place] = found
                return found
        if damaged is not None:
            run, version = place
            ref = VersionRef(version=version, run=run, sha256="0" * 64)
            return Known(ref=ref, kind="delta", lacks=_damaged(damaged))
        return None

    def _read(self, folder: VersionFolder) -> Known | None:
        try:
            data = self._store.read(folder.manifest, bytes_max=self._limits.manifest_bytes_max)
        except FileMissing:
            return None
        except Oversize as error:
            raise defective(folder.manifest, "corrupted", error.message) from None
        said = decode_record(data, _Manifest, folder.manifest)
        self._store.signatures.check(data, folder.manifest)
        if (said.model, said.run, said.version) != (self._model, folder.run, folder.version):
            what = f"its manifest is of version {said.version} of run {said.run} of {said.model!r}"
            raise defective(folder.path, "reordered", what)
        mine = VersionRef(version=said.version, run=said.run, sha256=hashlib.sha256(data).hexdigest())
        try:
            outcome, lacks = self._outcome(folder), ""
        except VersionDefect as error:
            outcome, lacks = None, _damaged(error)
        return Known(
            ref=said.stands_for or mine,
            kind=said.kind,
            parent=said.parent,
            content_of=said.content_of,
            graph=said.graph,
            written_wall_ms=said.written_wall_ms,
            watermark_ms=said.watermark_ms,
            rows=sum(file.rows for file in said.files if file.kind == "rows"),
            gone=sum(file.rows for file in said.files if file.kind == "gone"),
            bytes=sum(file.bytes for file in said.files),
            metrics=said.metrics,
            outcome=outcome,
            lacks=lacks,
        )

    def _outcome(self, folder: VersionFolder) -> Outcome | None:
        """What the judge said, wherever the version lay when it was judged."""
        for shape in SHAPES:
            verdict = read_verdict(self._store, version_folder(self._model, shape, folder.version, folder.run))
            if verdict is not None:
                return verdict.outcome
        return None


def _before(places: list[tuple[int, int]], at: tuple[int, int]) -> tuple[int, int] | None:
    """Where the history goes on when a parent is gone: before it in its run, else in the run before."""
    return next((one for one in places if one < at and one[1] < at[1]), None)


def _with_lacks(known: list[Known], folders: frozenset[VersionFolder], model: str) -> Iterable[Known]:
    """The same, each saying what it lacks to be read."""
    lacks: dict[tuple[int, int], tuple[VersionRef, str]] = {}
    for one in known:
        place = one.ref.run, one.version
        has_delta, has_base = (VersionFolder(*place, shape, model) in folders for shape in SHAPES)
        lacking = one.lacks
        if not lacking and not has_base:
            lacking = _lacking(one, lacks) if has_delta else f"version {one.version} is gone"
        lacks[place] = one.ref, lacking
        yield structs.replace(one, lacks=lacking)


def _lacking(one: Known, lacks: dict[tuple[int, int], tuple[VersionRef, str]]) -> str:
    parent = one.parent
    if parent is None:
        return ""
    there, lacking = lacks.get((parent.run, parent.version), (None, ""))
    # Of one whose manifest is damaged nobody knows whether it is that parent.
    return lacking if lacking or there == parent else f"version {parent.version}, which it follows, is missing"


def _damaged(error: VersionDefect) -> str:
    return f"{error.path} ({error.defect})"
