"""Gc: a plan of what may go from a store, and carrying it out so that the store is readable at every moment.

Which versions stay is retention's to say, and how those who read are told of it is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import VersionDefect
from streamlearn.settings import RetentionSettings
from streamlearn.versions.format.log import Log
from streamlearn.versions.format.manifest import KINDS
from streamlearn.versions.format.scratch import Progress
from streamlearn.versions.store.interface import FileFound, Store
from streamlearn.versions.store.layout import MANIFEST_NAME, SHAPES, VersionFolder, graph_folder, shape_folder
from streamlearn.versions.store.settings import LoadSettings, checked
from streamlearn.versions.upkeep.retention import CommittedFolder, Going, LooseFolder, Reason, Retained, There, retain

__all__ = ["GcPlan", "Removal", "Swept", "plan_gc", "sweep"]

_GRAPH_INDEX = "graph.json"
_GRAPHS = "graphs"
# What makes the rest of a folder something; it goes first.
_SEALS = (MANIFEST_NAME, _GRAPH_INDEX)


@dataclass(frozen=True)
class Removal:
    """What goes together.

    Attributes:
        folder: The folder.
        reason: Why; "leftover" for files that are of no version, in a folder that stays.
        files: The files that go, in the order in which they do.
        bytes: Of all of them.
    """

    folder: str
    reason: Reason | str
    files: tuple[FileFound, ...]

    @property
    def bytes(self) -> int:
        """Bytes that will be free."""
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True)
class GcPlan:
    """What is to be done.

    Attributes:
        model: Of which model.
        retained: Which versions stay, and the floor.
        removals: What goes, in its order.
    """

    model: str
    retained: Retained
    removals: tuple[Removal, ...]

    @property
    def bytes(self) -> int:
        """Bytes that will be free."""
        return sum(one.bytes for one in self.removals)


@dataclass(frozen=True)
class Swept:
    """What was done.

    Attributes:
        files: Files that were removed.
        bytes: Of those.
        spared: Folders that stay: they became versions since the plan was made, or are graphs that versions name
            again.
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
    limits: LoadSettings | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> GcPlan:
    """See what may go; nothing is changed.

    Args:
        store: Where the model's versions are.
        model: The model.
        must: Versions that stay however old they are: the active one, the one before it, a held one, the canary, what
            nodes say they need.
        settings: How long versions stay.
        limits: Limits of reading.
        clock: What time it is. Files are as old as the store says: the two clocks must agree to within much less than
            `orphan_s`.

    Raises:
        VersionDefect: It cannot be told which run's history prevails.
        Oversize: There are more files than `entries_max`.
    """
    rules, reading = checked(settings or RetentionSettings()), checked(limits or store.loading)
    now_wall_ms = clock.wall_ms()
    log = Log(store, model, reading)
    files = {folder: _by_folder(store.walk(folder), folder) for folder in _places(model)}
    by_folder = {path: found for some in files.values() for path, found in some.items()}
    retained = retain(_there(log, files, by_folder), must, rules, now_wall_ms=now_wall_ms)
    going = {_path(model, one): one for one in retained.goes}
    removals = [Removal(path, one.reason, _ordered(by_folder.get(path, []))) for path, one in going.items()]
    horizon_ms = now_wall_ms - int(rules.orphan_s * 1000)
    for path, found in by_folder.items():
        stale = [file for file in found if file.written_wall_ms < horizon_ms]
        if path not in going and stale and (loose := _unnamed(log, path, stale)):
            removals.append(Removal(path, "leftover", tuple(loose)))
    return GcPlan(model, retained, tuple(removals))


def sweep(
    store: Store,
    plan: GcPlan,
    *,
    raise_floor: Callable[[int], None],
    wait: Callable[[], None],
    limits: LoadSettings | None = None,
    progress: Progress | None = None,
) -> Swept:
    """Carry a plan out.

    A manifest goes before what it names, so a folder that is half removed is an uncommitted one. Whatever stops this,
    the versions that stay are readable, and another plan finishes it.

    Args:
        store: Where.
        plan: What `plan_gc` gave.
        raise_floor: Lets nobody ask for a version below the floor any more; called before anything is removed.
        wait: Returns when whoever began to read an older version has had time to end.
        limits: Limits of reading.
        progress: Told after each file how many bytes are removed, and of how many.
    """
    if not plan.removals:
        return Swept(0, 0, ())
    if plan.retained.floor is not None:
        raise_floor(plan.retained.floor)
    wait()
    spared = _spared(store, plan, limits or store.loading)
    count = size = 0
    for removal in plan.removals:
        if removal.folder in spared:
            continue
        for file in removal.files:
            _remove(store, file)
            count, size = count + 1, size + file.bytes
            if progress is not None:
                progress(size, plan.bytes)
        store.prune(removal.folder)
    for folder in _places(plan.model):
        store.prune(folder)
    return Swept(count, size, spared)


def _spared(store: Store, plan: GcPlan, limits: LoadSettings) -> tuple[str, ...]:
    """What a writer made use of since the plan: folders that it committed, graphs that its versions name."""
    by_reason = {one.folder: one.reason for one in plan.removals}
    spared = [
        folder
        for folder, reason in by_reason.items()
        if reason == "uncommitted" and store.exists(f"{folder}/{MANIFEST_NAME}")
    ]
    if "unused" in by_reason.values():
        log = Log(store, plan.model, limits)
        staying = (log.read(one) for one in log.folders if one.path not in by_reason or one.path in spared)
        used = {found.manifest.graph for found in staying if found is not None} - {None}
        spared += [folder for graph in used if graph and (folder := graph_folder(plan.model, graph)) in by_reason]
    return tuple(spared)


def _remove(store: Store, file: FileFound) -> None:
    if file.is_finished:
        store.remove(file.path)
    else:
        folder, _, name = file.path.rpartition("/")
        store.sweep(folder, name)


def _places(model: str) -> list[str]:
    return [*(shape_folder(model, shape) for shape in SHAPES), f"{model}/{_GRAPHS}"]


def _path(model: str, one: Going) -> str:
    return graph_folder(model, one.name) if one.reason == "unused" else one.name


def _by_folder(files: Iterable[FileFound], place: str) -> dict[str, list[FileFound]]:
    """Files by the folder in this place that they are in, however deep."""
    found: dict[str, list[FileFound]] = {}
    for file in files:
        name, inner, _ = file.path.removeprefix(f"{place}/").partition("/")
        if inner:
            found.setdefault(f"{place}/{name}", []).append(file)
    return found


def _ordered(files: Iterable[FileFound]) -> tuple[FileFound, ...]:
    return tuple(sorted(files, key=lambda file: (file.path.rpartition("/")[2] not in _SEALS, file.path)))


def _there(log: Log, files: dict[str, dict[str, list[FileFound]]], by_folder: dict[str, list[FileFound]]) -> There:
    committed, uncommitted = list[CommittedFolder](), list[LooseFolder]()
    late = set(log.superseded())
    for folder in log.folders:
        mine = by_folder.get(folder.path, [])
        if any(file.path == folder.manifest for file in mine):
            committed.append(_committed(log, folder, mine, folder in late))
        elif mine:
            uncommitted.append(LooseFolder(folder.path, _touched_wall_ms(mine)))
    place = f"{log.model}/{_GRAPHS}"
    graphs = [
        LooseFolder(path.removeprefix(f"{place}/"), _touched_wall_ms(found)) for path, found in files[place].items()
    ]
    return There(tuple(committed), tuple(uncommitted), tuple(graphs))


def _committed(log: Log, folder: VersionFolder, files: list[FileFound], is_superseded: bool) -> CommittedFolder:
    try:
        found = log.read(folder)
    except VersionDefect:
        found = None
    if found is None:
        return CommittedFolder(folder, None, _touched_wall_ms(files), None, is_superseded, is_damaged=True)
    manifest = found.manifest
    return CommittedFolder(folder, manifest.parent, manifest.written_wall_ms, manifest.graph, is_superseded)


def _touched_wall_ms(files: Iterable[FileFound]) -> int:
    return max(file.written_wall_ms for file in files)


def _unnamed(log: Log, path: str, files: list[FileFound]) -> list[FileFound]:
    """Of old files in a folder that stays: those that are not finished, and those no manifest names."""
    loose = [file for file in files if not file.is_finished]
    folder = next((one for one in log.folders if one.path == path), None)
    try:
        found = log.read(folder) if folder is not None else None
    except VersionDefect:
        found = None
    if found is None:
        return loose
    named = {f"{path}/{file.path}" for file in found.manifest.files}
    return [
        *loose,
        *(
            file
            for file in files
            # What others keep beside a manifest is theirs.
            if file.is_finished and file.path not in named and file.path.removeprefix(f"{path}/").split("/")[0] in KINDS
        ),
    ]
