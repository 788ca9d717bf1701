"""Gc: plans which files may be removed from a store, and removes them so that the store is always readable.

Retention decides which versions stay, and the caller informs readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import VersionDefect
from streamlearn.settings import RetentionSettings
from streamlearn.versions.format.log import Log
from streamlearn.versions.format.manifest import KINDS, Manifest
from streamlearn.versions.format.scratch import Progress
from streamlearn.versions.store.interface import FileFound, Store
from streamlearn.versions.store.layout import MANIFEST_NAME, SHAPES, VersionFolder, graph_folder, shape_folder
from streamlearn.versions.store.settings import checked
from streamlearn.versions.upkeep.retention import CommittedFolder, Inventory, LooseFolder, Reason, Retained, retain

__all__ = ["GcPlan", "Removal", "Swept", "plan_gc", "sweep"]

_GRAPH_INDEX = "graph.json"
_GRAPHS = "graphs"
# The files that make a folder a version or a graph; they are removed first.
_SEALS = (MANIFEST_NAME, _GRAPH_INDEX)


@dataclass(frozen=True)
class Removal:
    """Files of one folder that are removed together, in order.

    The reason is "leftover" for files that belong to no version, in a folder that stays.
    """

    folder: str
    reason: Reason | str
    files: tuple[FileFound, ...]

    @property
    def bytes(self) -> int:
        """Bytes that become free."""
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True)
class GcPlan:
    """The versions of a model that stay, and the removals in order."""

    model: str
    retained: Retained
    removals: tuple[Removal, ...]

    @property
    def bytes(self) -> int:
        """Bytes that become free."""
        return sum(removal.bytes for removal in self.removals)


@dataclass(frozen=True)
class Swept:
    """The result of a sweep: files removed, and their bytes.

    `spared` are the folders of which something stays, because it became needed after the plan was made. A folder became
    a version, a version names the graph again, or another version needs it.
    """

    files: int
    bytes: int
    spared: tuple[str, ...]


def plan_gc(
    store: Store,
    model: str,
    must: Iterable[int] = (),
    *,
    settings: RetentionSettings | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> GcPlan:
    """Plan what may be removed; changes nothing.

    The versions in `must` stay however old they are: the active one, the previous one, a held one, the canary, and
    those that nodes report they need. The age of files comes from the store, so its clock must agree with `clock` to
    within much less than `orphan_s`.

    Raises:
        VersionDefect: It cannot be determined which run's history prevails.
        Oversize: There are more files than `entries_max`.
    """
    rules, now_wall_ms = checked(settings or RetentionSettings()), clock.wall_ms()
    log = Log(store, model)
    by_place = {place: _by_folder(store.walk(place), place) for place in _places(model)}
    by_folder = {path: files for folders in by_place.values() for path, files in folders.items()}
    inventory = _inventory(log, by_folder, by_place[f"{model}/{_GRAPHS}"])
    retained = retain(inventory, must, rules, now_wall_ms=now_wall_ms)
    reasons = {
        graph_folder(model, name) if reason == "unused" else name: reason for name, reason in retained.goes.items()
    }
    removals = [Removal(path, reason, _ordered(by_folder.get(path, []))) for path, reason in reasons.items()]
    horizon_ms = now_wall_ms - int(rules.orphan_s * 1000)
    for path, files in by_folder.items():
        stale = [file for file in files if file.written_wall_ms < horizon_ms]
        if path not in reasons and stale and (loose := _unnamed(log, path, stale)):
            removals.append(Removal(path, "leftover", tuple(loose)))
    return GcPlan(model, retained, tuple(removals))


def sweep(
    store: Store,
    plan: GcPlan,
    *,
    raise_floor: Callable[[int], None],
    wait: Callable[[], None],
    plan_again: Callable[[], GcPlan] | None = None,
    progress: Progress | None = None,
) -> Swept:
    """Carry out a plan. Files that `plan_again`, called after the wait, does not remove stay: others may need them.

    A manifest is removed before the files that it names, so a half removed folder is an uncommitted one. If this is
    interrupted, the versions that stay are readable, and another plan finishes the work.

    Before any removal, `raise_floor` must refuse new requests for versions below the floor, and `wait` must return once
    readers that began earlier had time to end. `progress` takes the bytes removed and the bytes to remove.
    """
    if not plan.removals:
        return Swept(0, 0, ())
    if plan.retained.floor is not None:
        raise_floor(plan.retained.floor)
    wait()
    spared = _spared(store, plan)
    still = {file.path for removal in (plan_again or (lambda: plan))().removals for file in removal.files}
    stays = {removal.folder for removal in plan.removals if not still.issuperset(file.path for file in removal.files)}
    count, size, whole = 0, 0, plan.bytes
    for removal in plan.removals:
        if removal.folder in spared:
            continue
        for file in removal.files:
            if file.path not in still:
                continue
            _remove(store, file)
            count, size = count + 1, size + file.bytes
            if progress is not None:
                progress(size, whole)
        store.prune(removal.folder)
    for folder in _places(plan.model):
        store.prune(folder)
    return Swept(count, size, tuple({*spared, *stays}))


def _spared(store: Store, plan: GcPlan) -> tuple[str, ...]:
    """The folders that a writer has used since the plan: those it committed, and graphs that its versions name."""
    reasons = {removal.folder: removal.reason for removal in plan.removals}
    spared = [
        folder
        for folder, reason in reasons.items()
        if reason == "uncommitted" and store.exists(f"{folder}/{MANIFEST_NAME}")
    ]
    if "unused" in reasons.values():
        log = Log(store, plan.model)
        staying = (log.read(folder) for folder in log.folders if folder.path not in reasons or folder.path in spared)
        used = {graph for version in staying if version is not None for graph in version.manifest.graphs}
        spared += [folder for graph in used if (folder := graph_folder(plan.model, graph)) in reasons]
    return tuple(spared)


def _remove(store: Store, file: FileFound) -> None:
    if file.is_finished:
        store.remove(file.path)
    else:
        folder, _, name = file.path.rpartition("/")
        store.sweep(folder, name)


def _places(model: str) -> list[str]:
    return [*(shape_folder(model, shape) for shape in SHAPES), f"{model}/{_GRAPHS}"]


def _by_folder(files: Iterable[FileFound], place: str) -> dict[str, list[FileFound]]:
    """Group files, however deep, by the folder directly below this place."""
    folders: dict[str, list[FileFound]] = {}
    for file in files:
        name, inner, _ = file.path.removeprefix(f"{place}/").partition("/")
        if inner:
            folders.setdefault(f"{place}/{name}", []).append(file)
    return folders


def _ordered(files: Iterable[FileFound]) -> tuple[FileFound, ...]:
    return tuple(sorted(files, key=lambda file: (file.path.rpartition("/")[2] not in _SEALS, file.path)))


def _inventory(log: Log, by_folder: dict[str, list[FileFound]], graphs: dict[str, list[FileFound]]) -> Inventory:
    committed, uncommitted = list[CommittedFolder](), list[LooseFolder]()
    late = set(log.superseded())
    for folder in log.folders:
        files = by_folder.get(folder.path, [])
        if any(file.path == folder.manifest for file in files):
            committed.append(_committed(log, folder, files, folder in late))
        elif files:
            uncommitted.append(LooseFolder(folder.path, _touched_wall_ms(files)))
    loose = [LooseFolder(path.rpartition("/")[2], _touched_wall_ms(files)) for path, files in graphs.items()]
    return Inventory(tuple(committed), tuple(uncommitted), tuple(loose))


def _committed(log: Log, folder: VersionFolder, files: list[FileFound], is_superseded: bool) -> CommittedFolder:
    manifest = _manifest(log, folder)
    if manifest is None:
        return CommittedFolder(folder, None, _touched_wall_ms(files), frozenset(), is_superseded, is_damaged=True)
    return CommittedFolder(folder, manifest.parent, manifest.written_wall_ms, manifest.graphs, is_superseded)


def _manifest(log: Log, folder: VersionFolder) -> Manifest | None:
    try:
        version = log.read(folder)
    except VersionDefect:
        return None
    return None if version is None else version.manifest


def _touched_wall_ms(files: Iterable[FileFound]) -> int:
    return max(file.written_wall_ms for file in files)


def _unnamed(log: Log, path: str, files: list[FileFound]) -> list[FileFound]:
    """Of the old files in a folder that stays: those that are unfinished, and those that no manifest names."""
    loose = [file for file in files if not file.is_finished]
    folder = next((folder for folder in log.folders if folder.path == path), None)
    manifest = None if folder is None else _manifest(log, folder)
    if manifest is None:
        return loose
    named = {f"{path}/{file.path}" for file in manifest.files}
    for file in files:
        # Files that other parts keep beside a manifest stay.
        is_of_version = file.path.removeprefix(f"{path}/").split("/")[0] in KINDS
        if file.is_finished and file.path not in named and is_of_version:
            loose.append(file)
    return loose
