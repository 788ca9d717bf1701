"""Chain: a base and the deltas after it, each tied to the one before, which together are one version."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from streamlearn.errors import Oversize, VersionDefect
from streamlearn.features.names import model_fingerprint
from streamlearn.versions.format.log import Log
from streamlearn.versions.format.manifest import Manifest, VersionRef
from streamlearn.versions.format.writer import Committed
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.layout import VersionFolder
from streamlearn.versions.store.settings import LoadSettings, checked

__all__ = ["Chain"]

# What a listing that was taken while others wrote and swept may show, and another one may not.
_LISTED_TWICE = ("gap", "missing", "uncommitted")


@dataclass(frozen=True)
class Chain:
    """Versions that are read one after the other.

    Attributes:
        store: Where they are.
        model: Whose they are.
        links: The base and the deltas after it; or the deltas after `since`, oldest first.
        since: The version they follow; None for a chain that begins with a base.
        head: The version they make, when there is no link because it is `since` itself.
        superseded: Folders of versions that an older run committed too late; never part of a chain.
    """

    store: Store
    model: str
    links: tuple[Committed, ...]
    since: VersionRef | None
    head: Committed
    superseded: tuple[str, ...]

    @classmethod
    def find(
        cls,
        store: Store,
        model: str,
        upto: int | None = None,
        *,
        since: VersionRef | None = None,
        sha256: str | None = None,
        settings: LoadSettings | None = None,
    ) -> Chain:
        """The chain of a version.

        Args:
            store: Where to look.
            model: The model.
            upto: The version; the newest by default.
            since: A version that is loaded already: only deltas after it are wanted.
            sha256: Of the version, where runs that raced gave its number to two: that one, also if it is superseded.
            settings: Limits.

        Raises:
            VersionDefect: There is no such version, or something of the chain is not what it is to be.
            Oversize: It has more deltas than `deltas_max`.
        """
        limits = checked(settings or store.loading)
        try:
            return cls._found(Log(store, model, limits), (upto, sha256), since)
        except VersionDefect as error:
            if error.defect not in _LISTED_TWICE:
                raise
        return cls._found(Log(store, model, limits), (upto, sha256), since)

    @property
    def version(self) -> int:
        """The version the chain makes."""
        return self.head.manifest.version

    @property
    def ref(self) -> VersionRef:
        """What names that version; what a later `find` takes as `since`."""
        return self.head.ref

    @property
    def manifest(self) -> Manifest:
        """The manifest of that version."""
        return self.head.manifest

    @classmethod
    def _found(cls, log: Log, upto: tuple[int | None, str | None], since: VersionRef | None) -> Chain:
        head = _head(log, *upto)
        links = _walked(log, head, since)
        for earlier, later in itertools.pairwise(links):
            _check_alike(earlier, later)
        superseded = tuple(one.path for one in log.superseded())
        newest = links[-1] if links else _of(log, head)
        return cls(log.store, log.model, tuple(links), since, newest, superseded)


def _head(log: Log, upto: int | None, sha256: str | None) -> VersionFolder:
    """The folder of the version that is wanted."""
    newest = log.newest()
    if newest is None:
        raise defective(log.model, "missing", f"{log.store.url} has no committed version of model {log.model!r}")
    if upto is None:
        return newest
    there = [one for one in log.folders if one.version == upto]
    read = {one: version for one in there if (version := log.read(one)) is not None}
    committed = list(read)
    named = next((one for one, version in read.items() if version.ref.sha256 == sha256), None)
    if named is not None:
        return named
    of_history = [one for one in committed if not log.is_superseded(one)]
    if of_history:
        return of_history[-1]
    if committed:
        said = f"run {committed[-1].run} wrote it after a newer run had taken over; the newest is run {newest.run}"
        raise defective(committed[-1].path, "older_run", said)
    if there:
        raise defective(there[-1].path, "uncommitted", "its manifest is missing")
    raise defective(log.model, "missing", f"version {upto} does not exist; the newest is {newest.version}")


def _walked(log: Log, head: VersionFolder, since: VersionRef | None) -> list[Committed]:
    """The links, from the head back."""
    links: list[Committed] = []
    wanted: VersionRef | None = None
    version, run = head.version, head.run
    while True:
        child = links[-1] if links else None
        if since is not None and (version, run) == (since.version, since.run):
            _check_since(since, wanted or _of(log, head).ref, child.folder if child else head.path)
            break
        if since is not None and version < since.version:
            said = f"it follows version {version} of run {run}, not {since.version} of run {since.run}"
            raise defective(child.folder if child else head.path, "foreign", said)
        found = _node(log, (version, run), wanted, child, is_whole=since is None)
        links.append(found)
        if len(links) > log.settings.deltas_max + 1:
            message = f"version {head.version} of {log.model!r} has more than {log.settings.deltas_max} deltas"
            raise Oversize(message, help="write a base, or raise deltas_max")
        if found.manifest.kind == "base":
            break
        wanted = found.manifest.parent
        assert wanted is not None  # a delta has a parent, or its manifest was refused
        _check_siblings(log, found, wanted)
        version, run = wanted.version, wanted.run
    return links[::-1]


def _node(
    log: Log, at: tuple[int, int], wanted: VersionRef | None, child: Committed | None, *, is_whole: bool
) -> Committed:
    """A version of the chain, in the shape that is needed.

    Args:
        log: The versions there are.
        at: Its number and run.
        wanted: What its child says of it.
        child: The version after it.
        is_whole: Whether a base ends the chain; if not, a base is of no use.
    """
    delta, base = (
        log.read(folder) if (folder := log.folder(shape, *at)) is not None else None for shape in ("deltas", "bases")
    )
    whole = base.manifest.stands_for if base is not None else None
    if delta is not None and base is not None and whole != delta.ref:
        raise defective(base.folder, "foreign", f"it stands for {whole}, but {delta.folder} is {delta.ref}")
    found = base if is_whole and base is not None else delta
    if found is None:
        raise _absent(log, at, child, base)
    if wanted is not None and wanted != found.ref:
        said = f"its sha256 is {found.ref.sha256}, but {child.folder if child else 'its child'} follows {wanted.sha256}"
        raise defective(found.folder, "foreign", said)
    return found


def _absent(log: Log, at: tuple[int, int], child: Committed | None, base: Committed | None) -> VersionDefect:
    """Why a version of the chain cannot be read."""
    version, run = at
    path = child.folder if child else log.model
    if base is not None:
        return defective(path, "gap", f"version {version} has only a base, but its delta is needed")
    others = [one.run for one in log.folders if one.version == version and one.run != run]
    if others:
        said = f"it follows version {version} of run {run}, but the store has one of run {others[-1]}"
        return defective(path, "foreign", said)
    return defective(path, "gap", f"it follows version {version} of run {run}, which is missing")


def _check_siblings(log: Log, found: Committed, parent: VersionRef) -> None:
    """Of one run, nothing was committed between a version and its parent."""
    mine = found.manifest
    if parent.run != mine.run:
        return
    for folder in log.between(mine.run, parent.version, mine.version):
        other = log.read(folder)
        if other is not None:
            said = f"it follows version {parent.version}, as does {other.folder} of the same run"
            raise defective(found.folder, "duplicate", said)


def _check_since(since: VersionRef, wanted: VersionRef, path: str) -> None:
    """What is loaded is the version the chain goes on from, and not another of the same number."""
    if since != wanted:
        said = f"version {wanted.version} before it has sha256 {wanted.sha256}, but the loaded one has {since.sha256}"
        raise defective(path, "foreign", said)


def _check_alike(earlier: Committed, later: Committed) -> None:
    """Features, labels and tables stay the same from a version to the next; one of before has the labels after it."""
    labels = later.manifest.labels
    for name, before, after in (
        ("labels", earlier.manifest.labels or labels, labels),
        ("fingerprint", _fingerprint_of(earlier.manifest, labels), later.manifest.fingerprint),
        ("tables", earlier.manifest.tables, later.manifest.tables),
    ):
        if before != after:
            said = f"its {name} are {after}, but those of version {earlier.manifest.version} are {before}"
            raise defective(later.folder, "incompatible", said[:2_000])


def _fingerprint_of(manifest: Manifest, labels: Sequence[str] | None) -> str:
    """The fingerprint of its model, if a version that names no labels has these."""
    if manifest.labels is not None or labels is None:
        return manifest.fingerprint
    return model_fingerprint(manifest.fingerprint, labels)


def _of(log: Log, head: VersionFolder) -> Committed:
    found = log.read(head)
    if found is None:
        raise defective(head.path, "gap", "its manifest was deleted a moment ago")
    return found
