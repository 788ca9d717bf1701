"""Retention: decides which versions stay, and which folders may be removed. It reads nothing and removes nothing.

Versions from the *floor* on stay, each of them readable: the base that the floor is read from, and every delta after
it. Of the other bases the newest stays, the first after the floor, and those that a version in `must` is read from;
deltas cover the rest. Without the first after the floor, the floor would be read from the same base for ever.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Literal

from streamlearn.settings import RetentionSettings
from streamlearn.versions.format.manifest import VersionRef
from streamlearn.versions.store.layout import VersionFolder

__all__ = ["CommittedFolder", "Inventory", "LooseFolder", "Reason", "Retained", "retain"]

Reason = Literal["old", "shortened", "superseded", "uncommitted", "unreachable", "unused"]
"""Why a folder may be removed.

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

    `is_superseded`: an older run wrote it after a newer one had taken over. `is_damaged`: its manifest cannot be read,
    so parent and graphs are unknown.
    """

    folder: VersionFolder
    parent: VersionRef | None
    written_wall_ms: int
    graphs: frozenset[str] = frozenset()
    is_superseded: bool = False
    is_damaged: bool = False


@dataclass(frozen=True)
class LooseFolder:
    """A folder without a manifest: an uncommitted version, named by its path, or a graph, named by its id.

    `touched_wall_ms` is the last write to one of its files.
    """

    name: str
    touched_wall_ms: int


@dataclass(frozen=True)
class Inventory:
    """The folders of a model: versions with a manifest, versions without one, and graphs."""

    committed: tuple[CommittedFolder, ...] = ()
    uncommitted: tuple[LooseFolder, ...] = ()
    graphs: tuple[LooseFolder, ...] = ()


@dataclass(frozen=True)
class Retained:
    """The decision.

    Attributes:
        stays: Versions that are readable and stay so, oldest first.
        floor: The first of them; None if no version can be read.
        goes: Folders that may be removed and why, by path or by the id of a graph, in the order of removal.
        unreadable: Versions that should stay but cannot be read now. In that case no version of the history goes.
    """

    stays: tuple[int, ...]
    floor: int | None
    goes: dict[str, Reason]
    unreadable: tuple[int, ...]


@dataclass
class _Node:
    """A version of the history, with its delta, its base, or both."""

    delta: CommittedFolder | None = None
    base: CommittedFolder | None = None
    folders: list[CommittedFolder] = field(default_factory=list)

    @property
    def first(self) -> CommittedFolder:
        """The folder that was written first."""
        return min(self.folders, key=lambda committed: committed.written_wall_ms)

    @property
    def version(self) -> int:
        return self.folders[0].folder.version


def retain(inventory: Inventory, must: Iterable[int], settings: RetentionSettings, *, now_wall_ms: int) -> Retained:
    """Decide which versions stay.

    The versions in `must` stay however old they are: the active one, the previous one, a held one, the canary, and
    those that nodes report they need. The newest committed version always stays.

    Examples:
        >>> folders = [VersionFolder(1, n, "bases" if n in (1, 4) else "deltas", "ctr") for n in range(1, 7)]
        >>> refs = [None, *(VersionRef(version=n, run=1, sha256="0" * 64) for n in range(1, 6))]
        >>> inventory = Inventory(tuple(CommittedFolder(*pair, 0) for pair in zip(folders, refs)))
        >>> settings = RetentionSettings(keep_versions_min=1, keep_s=0)
        >>> retained = retain(inventory, {5}, settings, now_wall_ms=10**12)
        >>> retained.stays, retained.floor, list(retained.goes)[:1]
        ((5, 6), 5, ['ctr/bases/000000000001-00000001'])
    """
    history = _history(inventory.committed)
    present = {committed.folder.version for committed in inventory.committed if not committed.is_superseded}
    named = {version for version in must if version in present} | {node.version for node in history[-1:]}
    wanted, readable = named | _recent(history, settings, now_wall_ms), _readable(history)
    unreadable = tuple(sorted(wanted - readable))
    horizon_ms = now_wall_ms - int(settings.orphan_s * 1000)
    late = [folder for folder in inventory.committed if folder.is_superseded and folder.written_wall_ms < horizon_ms]
    goes: dict[str, Reason] = {old.folder.path: "superseded" for old in sorted(late, key=lambda old: old.folder)}
    floor = min(wanted & readable, default=None)
    if floor is not None and not unreadable:
        begins = [node.version for node in history if node.base is not None]
        begin = _begin(begins, floor)
        next_begin = begins[bisect_right(begins, floor) :][:1]
        needed = {*next_begin, *(_begin(begins, version) for version in (floor, *named))}
        goes |= _old(history, needed, begin, floor)
        goes |= _unreachable(inventory, history, begin, min(horizon_ms, now_wall_ms - int(settings.keep_s * 1000)))
        goes = _recognisable(inventory, goes)
    stale = [loose for loose in inventory.uncommitted if loose.touched_wall_ms < horizon_ms]
    goes |= {loose.name: "uncommitted" for loose in stale}
    goes |= _unused(inventory, goes, horizon_ms)
    stays = tuple(sorted(version for version in readable if floor is not None and version >= floor))
    return Retained(stays, floor, goes, unreadable)


def _history(committed: Iterable[CommittedFolder]) -> list[_Node]:
    """The versions from the newest back to the last parent that exists, oldest first."""
    nodes: dict[tuple[int, int], _Node] = {}
    for folder in committed:
        if folder.is_superseded or folder.is_damaged:
            continue
        node = nodes.setdefault((folder.folder.run, folder.folder.version), _Node())
        node.folders.append(folder)
        if folder.folder.shape == "bases":
            node.base = folder
        else:
            node.delta = folder
    history: list[_Node] = []
    at = max(nodes, default=None)
    while at is not None and at in nodes:
        history.append(nodes[at])
        parent = nodes[at].first.parent
        at = None if parent is None else (parent.run, parent.version)
    return history[::-1]


def _readable(history: list[_Node]) -> set[int]:
    """The versions that have a base at or before them, and each delta after it."""
    readable: set[int] = set()
    is_readable = False
    for node in history:
        is_readable = node.base is not None or (is_readable and node.delta is not None)
        if is_readable:
            readable.add(node.version)
    return readable


def _recent(history: list[_Node], settings: RetentionSettings, now_wall_ms: int) -> set[int]:
    """The newest versions by number and by age."""
    horizon_ms = now_wall_ms - int(settings.keep_s * 1000)
    newest = {node.version for node in history[-settings.keep_versions_min :]}
    young = {node.version for node in history if node.first.written_wall_ms >= horizon_ms}
    return newest | young


def _begin(begins: list[int], version: int) -> int:
    """The newest base that a version is read from."""
    return begins[bisect_right(begins, version) - 1]


def _old(history: list[_Node], needed: set[int], begin: int, floor: int) -> dict[str, Reason]:
    goes: dict[str, Reason] = {}
    for node in history:
        if node.version < begin:
            goes |= {committed.folder.path: "old" for committed in node.folders}
        elif node.delta is not None and node.base is not None:
            if node.version == begin < floor:
                goes[node.delta.folder.path] = "old"
            elif node.version not in needed:
                goes[node.base.folder.path] = "shortened"
    return goes


def _unreachable(inventory: Inventory, history: list[_Node], begin: int, horizon_ms: int) -> dict[str, Reason]:
    """The versions that do not lead to the newest one; none while one of them is young, as it may need the rest."""
    reachable = {committed.folder for node in history for committed in node.folders}
    lost = [
        committed
        for committed in sorted(inventory.committed, key=lambda committed: committed.folder)
        if committed.folder not in reachable and not committed.is_superseded and committed.folder.version < begin
    ]
    is_stale = all(committed.written_wall_ms < horizon_ms for committed in lost)
    return {committed.folder.path: "unreachable" for committed in lost} if is_stale else {}


def _recognisable(inventory: Inventory, goes: dict[str, Reason]) -> dict[str, Reason]:
    """Drop removals of runs that took over from a run whose late versions stay: they prove that those are late."""
    by_name = {committed.folder.path: committed for committed in inventory.committed}
    late = [old.folder.run for path, old in by_name.items() if old.is_superseded and path not in goes]
    run_max = min(late, default=None)
    return {
        name: reason
        for name, reason in goes.items()
        if reason == "superseded" or run_max is None or by_name[name].folder.run <= run_max
    }


def _unused(inventory: Inventory, goes: Container[str], horizon_ms: int) -> dict[str, Reason]:
    """The graphs of no version that stays; none if a manifest that stays cannot be read, for it may name any graph."""
    staying = [committed for committed in inventory.committed if committed.folder.path not in goes]
    if any(committed.is_damaged for committed in staying):
        return {}
    used = {graph for committed in staying for graph in committed.graphs}
    stale = (graph for graph in inventory.graphs if graph.name not in used and graph.touched_wall_ms < horizon_ms)
    return {graph.name: "unused" for graph in stale}
