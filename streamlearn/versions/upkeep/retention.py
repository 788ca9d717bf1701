"""Retention: which versions stay, and which folders may go. It reads nothing and removes nothing.

Versions from the *floor* on stay, each of them readable: the base the floor is read from, and every delta after it. Of
bases in between, only those are kept that a version named to stay is read from, and the newest; deltas tell the rest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from streamlearn.settings import RetentionSettings
from streamlearn.versions.format.manifest import VersionRef
from streamlearn.versions.store.layout import VersionFolder

__all__ = ["CommittedFolder", "Going", "LooseFolder", "Reason", "Retained", "There", "retain"]

Reason = Literal["old", "shortened", "superseded", "uncommitted", "unreachable", "unused"]
"""Why a folder may go.

- old: a version before the floor.
- shortened: a base whose version stays, and is read from an older base and deltas.
- superseded: an older run wrote it after a newer one had taken over.
- uncommitted: a killed writer left it.
- unreachable: a version that does not lead to the newest one, older than all that stays.
- unused: a graph that no version names.
"""


@dataclass(frozen=True)
class CommittedFolder:
    """A folder with a manifest.

    Attributes:
        folder: Which.
        parent: The version before it; None for the first.
        written_wall_ms: When it was written.
        graph: The graph it names.
        is_superseded: Whether an older run wrote it after a newer one had taken over.
        is_damaged: Whether its manifest cannot be read; nothing else is known of it then.
    """

    folder: VersionFolder
    parent: VersionRef | None
    written_wall_ms: int
    graph: str | None = None
    is_superseded: bool = False
    is_damaged: bool = False


@dataclass(frozen=True)
class LooseFolder:
    """A folder that no manifest makes a version: an uncommitted one, or a graph's.

    Attributes:
        name: Its path; for a graph its id.
        touched_wall_ms: When a file of it was last written to.
    """

    name: str
    touched_wall_ms: int


@dataclass(frozen=True)
class There:
    """What there is of a model.

    Attributes:
        committed: Folders with a manifest.
        uncommitted: Folders of versions without one.
        graphs: Graphs.
    """

    committed: tuple[CommittedFolder, ...] = ()
    uncommitted: tuple[LooseFolder, ...] = ()
    graphs: tuple[LooseFolder, ...] = ()


@dataclass(frozen=True)
class Going:
    """What may go: `name` is a folder's path, or a graph's id."""

    name: str
    reason: Reason


@dataclass(frozen=True)
class Retained:
    """What was decided.

    Attributes:
        stays: Versions that are readable and stay so, oldest first.
        floor: The first of them; None when there is no version that can be read.
        goes: What may go, in the order in which it is to go.
        unreadable: Versions that were to stay, and cannot be read as it is. Of the history nothing goes then.
    """

    stays: tuple[int, ...]
    floor: int | None
    goes: tuple[Going, ...]
    unreadable: tuple[int, ...]


@dataclass
class _Node:
    """A version of the history, in its shapes."""

    delta: CommittedFolder | None = None
    base: CommittedFolder | None = None
    folders: list[CommittedFolder] = field(default_factory=list)

    @property
    def first(self) -> CommittedFolder:
        """The delta or base that was written first."""
        return min(self.folders, key=lambda one: one.written_wall_ms)

    @property
    def version(self) -> int:
        return self.folders[0].folder.version


def retain(there: There, must: Iterable[int], settings: RetentionSettings, *, now_wall_ms: int) -> Retained:
    """Decide which versions stay.

    Args:
        there: What there is.
        must: Versions that stay however old they are: the active one, the one before it, a held one, the canary, what
            nodes say they need. The newest committed version stays in any case.
        settings: How long versions stay.
        now_wall_ms: What time it is.

    Examples:
        >>> folders = [VersionFolder(1, n, "bases" if n in (1, 4) else "deltas", "ctr") for n in range(1, 7)]
        >>> refs = [None, *(VersionRef(version=n, run=1, sha256="0" * 64) for n in range(1, 6))]
        >>> there = There(tuple(CommittedFolder(*one, 0) for one in zip(folders, refs)))
        >>> settings = RetentionSettings(keep_versions_min=1, keep_s=0)
        >>> found = retain(there, {5}, settings, now_wall_ms=10**12)
        >>> found.stays, found.floor, [one.name for one in found.goes][:1]
        ((5, 6), 5, ['ctr/bases/000000000001-00000001'])
    """
    history = _history(there.committed)
    present = {one.folder.version for one in there.committed if not one.is_superseded}
    named = {version for version in must if version in present} | {node.version for node in history[-1:]}
    wanted, readable = named | _recent(history, settings, now_wall_ms), _readable(history)
    unreadable = tuple(sorted(wanted - readable))
    horizon_ms = now_wall_ms - int(settings.orphan_s * 1000)
    stale = [one for one in there.committed if one.is_superseded and one.written_wall_ms < horizon_ms]
    goes = [Going(one.folder.path, "superseded") for one in sorted(stale, key=lambda one: one.folder)]
    floor = min(wanted & readable, default=None)
    if floor is not None and not unreadable:
        begins = [node.version for node in history if node.base is not None]
        begin = _begin(begins, floor)
        goes += _old(history, {_begin(begins, version) for version in (floor, *named)}, begin, floor)
        goes += _unreachable(there, history, begin, min(horizon_ms, now_wall_ms - int(settings.keep_s * 1000)))
        goes = _recognisable(there, goes)
    goes += [Going(one.name, "uncommitted") for one in there.uncommitted if one.touched_wall_ms < horizon_ms]
    goes += _unused(there, {one.name for one in goes}, horizon_ms)
    stays = tuple(sorted(version for version in readable if floor is not None and version >= floor))
    return Retained(stays, floor, tuple(goes), unreadable)


def _history(committed: Iterable[CommittedFolder]) -> list[_Node]:
    """Versions from the newest back, as long as each names one that is there."""
    nodes: dict[tuple[int, int], _Node] = {}
    for one in committed:
        if one.is_superseded or one.is_damaged:
            continue
        node = nodes.setdefault((one.folder.run, one.folder.version), _Node())
        node.folders.append(one)
        if one.folder.shape == "bases":
            node.base = one
        else:
            node.delta = one
    found: list[_Node] = []
    at = max(nodes, default=None)
    while at is not None and at in nodes:
        found.append(nodes[at])
        parent = nodes[at].first.parent
        at = None if parent is None else (parent.run, parent.version)
    return found[::-1]


def _readable(history: list[_Node]) -> set[int]:
    """Versions that have a base no later than they are, and each delta after it."""
    found: set[int] = set()
    is_readable = False
    for node in history:
        is_readable = node.base is not None or (is_readable and node.delta is not None)
        if is_readable:
            found.add(node.version)
    return found


def _recent(history: list[_Node], settings: RetentionSettings, now_wall_ms: int) -> set[int]:
    """The newest ones, and those that are young."""
    horizon_ms = now_wall_ms - int(settings.keep_s * 1000)
    newest = {node.version for node in history[-settings.keep_versions_min :]}
    young = {node.version for node in history if node.first.written_wall_ms >= horizon_ms}
    return newest | young


def _begin(begins: list[int], version: int) -> int:
    """The newest base that a version is read from."""
    return begins[bisect_right(begins, version) - 1]


def _old(history: list[_Node], needed: set[int], begin: int, floor: int) -> list[Going]:
    goes: list[Going] = []
    for node in history:
        if node.version < begin:
            goes += [Going(one.folder.path, "old") for one in node.folders]
        elif node.delta is not None and node.base is not None:
            if node.version == begin < floor:
                goes.append(Going(node.delta.folder.path, "old"))
            elif node.version not in needed:
                goes.append(Going(node.base.folder.path, "shortened"))
    return goes


def _unreachable(there: There, history: list[_Node], begin: int, horizon_ms: int) -> list[Going]:
    """What does not lead to the newest version; none while some is young, for that may hang on the rest."""
    known = {one.folder for node in history for one in node.folders}
    found = [
        one
        for one in sorted(there.committed, key=lambda one: one.folder)
        if one.folder not in known and not one.is_superseded and one.folder.version < begin
    ]
    is_stale = all(one.written_wall_ms < horizon_ms for one in found)
    return [Going(one.folder.path, "unreachable") for one in found] if is_stale else []


def _recognisable(there: There, goes: list[Going]) -> list[Going]:
    """The same, but of runs that took over from one whose late versions stay for now: those tell that they are late."""
    names = {one.name for one in goes}
    late = [one.folder.run for one in there.committed if one.is_superseded and one.folder.path not in names]
    by_name = {one.folder.path: one for one in there.committed}
    return [one for one in goes if one.reason == "superseded" or not late or by_name[one.name].folder.run <= min(late)]


def _unused(there: There, goes: set[str], horizon_ms: int) -> list[Going]:
    """Graphs of no version that stays; none where the manifest of one cannot be read, for it may name any."""
    if any(one.is_damaged and one.folder.path not in goes for one in there.committed):
        return []
    used = {one.graph for one in there.committed if one.folder.path not in goes}
    stale = (one for one in there.graphs if one.name not in used and one.touched_wall_ms < horizon_ms)
    return [Going(one.name, "unused") for one in stale]
