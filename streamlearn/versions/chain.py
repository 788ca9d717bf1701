"""Chain: a base and the deltas after it, each tied to the one before, which together are one version."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from streamlearn.errors import Oversize, VersionDefect
from streamlearn.versions.defect import defective
from streamlearn.versions.layout import VersionFolder
from streamlearn.versions.log import Log
from streamlearn.versions.manifest import Manifest, VersionRef
from streamlearn.versions.settings import LoadSettings, checked
from streamlearn.versions.store import Store
from streamlearn.versions.writer import Committed

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
        settings: LoadSettings | None = None,
    ) -> Chain:
        """The chain of a version.

        Args:
            store: Where to look.
            model: The model.
            upto: The version; the newest by default.
            since: A version that is loaded already: only deltas after it are wanted.
            settings: Limits.

        Raises:
            VersionDefect: There is no such version, or something of the chain is not what it is to be.
            Oversize: It has more deltas than `deltas_max`.
        """
        limits = checked(settings or LoadSettings())
        try:
            return cls._found(Log(store, model, limits), upto, since)
        except VersionDefect as error:
            if error.defect not in _LISTED_TWICE:
                raise
        return cls._found(Log(store, model, limits), upto, since)

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
    def _found(cls, log: Log, upto: int | None, since: VersionRef | None) -> Chain:
        head = _head(log, upto)
        links = _walked(log, head, since)
        for earlier, later in itertools.pairwise(links):
            _check_alike(earlier, later)
        superseded = tuple(one.path for one in log.superseded())
        newest = links[-1] if links else _of(log, head)
        return cls(log.store, log.model, tuple(links), since, newest, superseded)


def _head(log: Log, upto: int | None) -> VersionFolder:
    """The folder of the version that is wanted."""
    newest = log.newest()
    if newest is None:
        raise defective(log.model, "missing", f"{log.store.url} has no committed version of model {log.model!r}")
    if upto is None:
        return newest
    there = [one for one in log.folders if one.version == upto]
    committed = [one for one in there if log.read(one) is not None]
    of_history = [one for one in committed if not log.is_superseded(one)]
    if of_history:
        return of_history[-1]
    if committed:
        said = f"run {committed[-1].run} wrote it after a newer run had taken over; the newest is run {newest.run}"
        raise defective(committed[-1].path, "older_run", said)
    if there:
        raise defective(there[-1].path, "uncommitted", "it has no manifest")
    raise defective(log.model, "missing", f"there is no version {upto}; the newest is {newest.version}")


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
        raise defective(base.folder, "foreign", f"it stands for {whole}, {delta.folder} is {delta.ref}")
    found = base if is_whole and base is not None else delta
    if found is None:
        raise _absent(log, at, child, base)
    if wanted is not None and wanted != found.ref:
        said = f"its sha256 is {found.ref.sha256}, {child.folder if child else 'its child'} follows {wanted.sha256}"
        raise defective(found.folder, "foreign", said)
    return found


def _absent(log: Log, at: tuple[int, int], child: Committed | None, base: Committed | None) -> VersionDefect:
    """Why a version of the chain cannot be read."""
    version, run = at
    path = child.folder if child else log.model
    if base is not None:
        return defective(path, "gap", f"version {version} is there as a base alone, and its delta is needed")
    others = [one.run for one in log.folders if one.version == version and one.run != run]
    if others:
        said = f"it follows version {version} of run {run}, there is one of run {others[-1]}"
        return defective(path, "foreign", said)
    return defective(path, "gap", f"it follows version {version} of run {run}, which is not there")


def _check_siblings(log: Log, found: Committed, parent: VersionRef) -> None:
    """Of one run, nothing was committed between a version and its parent."""
    mine = found.manifest
    if parent.run != mine.run:
        return
    for folder in log.between(mine.run, parent.version, mine.version):
        other = log.read(folder)
        if other is not None:
            said = f"it follows version {parent.version}, and so does {other.folder}, of the same run"
            raise defective(found.folder, "duplicate", said)


def _check_since(since: VersionRef, wanted: VersionRef, path: str) -> None:
    """What is loaded is the version the chain goes on from, and not another of the same number."""
    if since != wanted:
        said = f"version {wanted.version} before it has sha256 {wanted.sha256}, the one loaded {since.sha256}"
        raise defective(path, "foreign", said)


def _check_alike(earlier: Committed, later: Committed) -> None:
    """Features and tables stay the same from a version to the next."""
    for name in ("fingerprint", "tables"):
        before, after = getattr(earlier.manifest, name), getattr(later.manifest, name)
        if before != after:
            said = f"its {name} are {after}, those of version {earlier.manifest.version} {before}"
            raise defective(later.folder, "incompatible", said[:2_000])


def _of(log: Log, head: VersionFolder) -> Committed:
    found = log.read(head)
    if found is None:
        raise defective(head.path, "gap", "its manifest was there a moment ago, and is not any more")
    return found
