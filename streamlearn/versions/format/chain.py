"""Chain: a base and the deltas after it, each tied to its parent, which together make one version."""

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

__all__ = ["Chain"]

# Defects that a second listing may not show, if others wrote and swept during the first.
_RETRIED = ("gap", "missing", "uncommitted")


@dataclass(frozen=True)
class Chain:
    """Versions to read one after the other.

    Attributes:
        links: The base and the deltas after it; or only the deltas after `since`. Oldest first.
        since: The version they follow; None for a chain that begins with a base.
        head: The version they make; it is `since` itself if there are no links.
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
    ) -> Chain:
        """Find the chain of a version.

        `upto` is the newest version by default. `since` is a version that is loaded already: the chain then has only
        the deltas after it. `sha256` selects the version if racing runs gave its number twice, even a superseded one.

        Raises:
            VersionDefect: The version does not exist, or a part of the chain is damaged or missing.
            Oversize: It has more deltas than `deltas_max`.
        """
        try:
            return cls._find(Log(store, model), (upto, sha256), since)
        except VersionDefect as error:
            if error.defect not in _RETRIED:
                raise
        return cls._find(Log(store, model), (upto, sha256), since)

    @property
    def version(self) -> int:
        """The version the chain makes."""
        return self.head.manifest.version

    @property
    def ref(self) -> VersionRef:
        """The reference of that version, which a later `find` takes as `since`."""
        return self.head.ref

    @property
    def manifest(self) -> Manifest:
        """The manifest of that version."""
        return self.head.manifest

    @classmethod
    def _find(cls, log: Log, upto: tuple[int | None, str | None], since: VersionRef | None) -> Chain:
        head = _head(log, *upto)
        links = _walk(log, head, since)
        for earlier, later in itertools.pairwise(links):
            _check_compatible(earlier, later)
        superseded = tuple(folder.path for folder in log.superseded())
        newest = links[-1] if links else _committed(log, head)
        return cls(log.store, log.model, tuple(links), since, newest, superseded)


def _head(log: Log, upto: int | None, sha256: str | None) -> VersionFolder:
    """Return the folder of the requested version."""
    newest = log.newest()
    if newest is None:
        raise defective(log.model, "missing", f"{log.store.url} has no committed version of model {log.model!r}")
    if upto is None:
        return newest
    folders = [folder for folder in log.folders if folder.version == upto]
    committed = {folder: version for folder in folders if (version := log.read(folder)) is not None}
    selected = next((folder for folder, version in committed.items() if version.ref.sha256 == sha256), None)
    if selected is not None:
        return selected
    in_history = [folder for folder in committed if not log.is_superseded(folder)]
    if in_history:
        return in_history[-1]
    if committed:
        last = list(committed)[-1]
        what = f"run {last.run} wrote it after a newer run had taken over; the newest is run {newest.run}"
        raise defective(last.path, "older_run", what)
    if folders:
        raise defective(folders[-1].path, "uncommitted", "its manifest is missing")
    raise defective(log.model, "missing", f"version {upto} does not exist; the newest is {newest.version}")


def _walk(log: Log, head: VersionFolder, since: VersionRef | None) -> list[Committed]:
    """Collect the links from the head back, and return them oldest first."""
    links: list[Committed] = []
    wanted: VersionRef | None = None
    version, run = head.version, head.run
    while True:
        child = links[-1] if links else None
        child_path = child.folder if child else head.path
        if since is not None and (version, run) == (since.version, since.run):
            _check_since(since, wanted or _committed(log, head).ref, child_path)
            break
        if since is not None and version < since.version:
            what = f"it follows version {version} of run {run}, not {since.version} of run {since.run}"
            raise defective(child_path, "foreign", what)
        link = _link(log, (version, run), wanted, child, ends_with_base=since is None)
        links.append(link)
        if len(links) > log.store.loading.deltas_max + 1:
            message = f"version {head.version} of {log.model!r} has more than {log.store.loading.deltas_max} deltas"
            raise Oversize(message, help="write a base, or raise deltas_max")
        if link.manifest.kind == "base":
            break
        wanted = link.manifest.parent
        assert wanted is not None  # `check_manifest` refuses a delta without a parent
        _check_siblings(log, link, wanted)
        version, run = wanted.version, wanted.run
    return links[::-1]


def _link(
    log: Log, key: tuple[int, int], wanted: VersionRef | None, child: Committed | None, *, ends_with_base: bool
) -> Committed:
    """Return a version of the chain, by its number and run, as its child refers to it.

    It is the base if there is one and a base may end the chain, else the delta.
    """
    delta, base = (
        log.read(folder) if (folder := log.folder(shape, *key)) is not None else None for shape in ("deltas", "bases")
    )
    whole = base.manifest.stands_for if base is not None else None
    if delta is not None and base is not None and whole != delta.ref:
        raise defective(base.folder, "foreign", f"it stands for {whole}, but {delta.folder} is {delta.ref}")
    link = base if ends_with_base and base is not None else delta
    if link is None:
        raise _absent(log, key, child, base)
    if wanted is not None and wanted != link.ref:
        what = f"its sha256 is {link.ref.sha256}, but {child.folder if child else 'its child'} follows {wanted.sha256}"
        raise defective(link.folder, "foreign", what)
    return link


def _absent(log: Log, key: tuple[int, int], child: Committed | None, base: Committed | None) -> VersionDefect:
    """Explain why a version of the chain cannot be read."""
    version, run = key
    path = child.folder if child else log.model
    if base is not None:
        return defective(path, "gap", f"version {version} has only a base, but its delta is needed")
    other_runs = [folder.run for folder in log.folders if folder.version == version and folder.run != run]
    if other_runs:
        what = f"it follows version {version} of run {run}, but the store has one of run {other_runs[-1]}"
        return defective(path, "foreign", what)
    return defective(path, "gap", f"it follows version {version} of run {run}, which is missing")


def _check_siblings(log: Log, link: Committed, parent: VersionRef) -> None:
    """Check that the same run committed nothing between a version and its parent."""
    manifest = link.manifest
    if parent.run != manifest.run:
        return
    for folder in log.between(manifest.run, parent.version, manifest.version):
        other = log.read(folder)
        if other is not None:
            what = f"it follows version {parent.version}, as does {other.folder} of the same run"
            raise defective(link.folder, "duplicate", what)


def _check_since(since: VersionRef, wanted: VersionRef, path: str) -> None:
    """Check that the loaded version is the one the chain continues, not another with its number."""
    if since != wanted:
        what = f"version {wanted.version} before it has sha256 {wanted.sha256}, but the loaded one has {since.sha256}"
        raise defective(path, "foreign", what)


def _check_compatible(earlier: Committed, later: Committed) -> None:
    """Check that features, labels and tables are the same; a version without labels has those of the next."""
    labels = later.manifest.labels
    for name, before, after in (
        ("labels", earlier.manifest.labels or labels, labels),
        ("fingerprint", _fingerprint(earlier.manifest, labels), later.manifest.fingerprint),
        ("tables", earlier.manifest.tables, later.manifest.tables),
        ("items of a library", *(bool(link.manifest.of_kind("library")) for link in (earlier, later))),
    ):
        if before != after:
            what = f"its {name} are {after}, but those of version {earlier.manifest.version} are {before}"
            raise defective(later.folder, "incompatible", what[:2_000])


def _fingerprint(manifest: Manifest, labels: Sequence[str] | None) -> str:
    """Return the fingerprint of a version's model; a version without labels has the given ones."""
    if manifest.labels is not None or labels is None:
        return manifest.fingerprint
    return model_fingerprint(manifest.fingerprint, labels)


def _committed(log: Log, folder: VersionFolder) -> Committed:
    version = log.read(folder)
    if version is None:
        raise defective(folder.path, "gap", "its manifest was deleted a moment ago")
    return version
