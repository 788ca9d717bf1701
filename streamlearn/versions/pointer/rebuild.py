"""Rebuild: a registry made right from the store, whatever it held. It tells the store nothing."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from streamlearn.errors import FileMissing, RegistryDefect, VersionDefect
from streamlearn.versions.format.history import History
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.pointer.moves import Pointer
from streamlearn.versions.pointer.pointer_log import PointerLog
from streamlearn.versions.pointer.registry import Note, Registry
from streamlearn.versions.store.interface import Store

__all__ = ["Rebuilt", "is_of", "kind_of_move", "rebuild_registry"]


class Rebuilt(Struct, frozen=True, kw_only=True):
    """What a registry lacked.

    Attributes:
        seq: Of the newest pointer, which it now has.
        pointer: Whether its copy of the pointer was an older one, or none.
        put: Versions that it did not have, or had otherwise.
        dropped: Versions that it had and the store has not.
        notes: Lines of the audit log that it did not have.
    """

    seq: int
    pointer: bool
    put: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    notes: int = 0


def rebuild_registry(
    store: Store, registry: Registry, *, history: History | None = None, notes_max: int | None = None
) -> Rebuilt:
    """Make a registry say what the store says: an empty, a stale or a wrong one. Doing it again changes nothing.

    Nodes and acks stay, unless the registry cannot be read, or is of another history: then all of it goes, and nodes
    say of themselves again what there is to know.

    Args:
        store: Where the versions and the pointer are.
        registry: The registry of one model.
        history: The history of that model, when it was read before; never one that believes a registry.
        notes_max: The last moves whose lines of the audit log are looked at; all that a registry keeps by default.

    Raises:
        RegistryUnreachable: The registry did not answer.
        StoreUnreachable: The store did not answer.
        VersionDefect: The newest record of the pointer is damaged; nothing was changed.
    """
    log = PointerLog(store, registry.model)
    log.newest()
    if not is_of(registry, log):
        registry.clear()
    put, dropped = _versions(registry, (history or History(store, registry.model)).read())
    # Read after `clear`: whoever moved the pointer before may have told it to what was cleared.
    newest = log.newest()
    is_newer = newest.seq > 0 and registry.announce(newest)
    notes = _notes(registry, log, notes_max)
    return Rebuilt(seq=newest.seq, pointer=is_newer, put=put, dropped=dropped, notes=notes)


def kind_of_move(before: Pointer, after: Pointer) -> str:
    """What a move of the pointer was, as the audit log calls it, from what it changed."""
    if after.floor > before.floor:
        return "floor"
    if before.held and not after.held:
        return "release"
    if after.held and (not before.held or len(after.taints) > len(before.taints) or _is_back(before, after)):
        return "rollback"
    if after.canary is not None and after.canary != before.canary:
        return after.canary.kind
    return "floor" if after.active == before.active and after.canary == before.canary else "promote"


def _is_back(before: Pointer, after: Pointer) -> bool:
    if before.active is None or after.active is None:
        return False
    return after.active.version < before.active.version


def is_of(registry: Registry, log: PointerLog) -> bool:
    """Whether a registry can be read, and its pointer is one of the store's moves."""
    try:
        held = registry.pointer()
        registry.versions(), registry.notes(registry.settings.notes_max), registry.nodes()
    except RegistryDefect:
        return False
    # After the registry: moves go to the store first. By its name too, for a listing may be behind.
    log.begin_near(0 if held is None else held.seq)
    newest = log.newest()
    if held is None or held.seq > newest.seq:
        return held is None
    try:
        return held == (newest if held.seq == newest.seq else log.read(held.seq))
    except (FileMissing, VersionDefect):
        return True


def _versions(registry: Registry, known: Sequence[Known]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Let the versions be those of the store; gives those that were not there, and those that went."""
    held = {one.version: one for one in registry.versions()}
    there = {one.version for one in known}
    put = [one for one in known if held.get(one.version) != one]
    dropped = [version for version in held if version not in there]
    if put:
        registry.put_versions(put)
    if dropped:
        registry.drop_versions(dropped)
    return tuple(one.version for one in put), tuple(dropped)


def _notes(registry: Registry, log: PointerLog, notes_max: int | None) -> int:
    """Lines of moves that have none."""
    most = registry.settings.notes_max
    held = registry.notes(most)
    noted = {note.seq for note in held}
    # A full log has let its oldest lines go, and they are not to come back.
    oldest_ms = held[0].wall_ms if len(held) >= most else -1
    seqs = log.seqs()[-(most if notes_max is None else min(most, notes_max)) :]
    read: dict[int, Pointer | None] = {0: Pointer()}
    count = 0
    for seq in seqs:
        if seq in noted:
            continue
        before, after = (_read(log, number, read) for number in (seq - 1, seq))
        if after is None or after.wall_ms <= oldest_ms:
            continue
        what = "move" if before is None else kind_of_move(before, after)
        version = 0 if after.active is None else after.active.version
        registry.note(
            Note(wall_ms=after.wall_ms, by=after.by, what=what, seq=seq, version=version, reason=after.reason)
        )
        count += 1
    return count


def _read(log: PointerLog, seq: int, read: dict[int, Pointer | None]) -> Pointer | None:
    """A move, read once; None for one that is gone or damaged, which takes nothing from the others."""
    if seq not in read:
        try:
            read[seq] = log.read(seq)
        except (FileMissing, VersionDefect):
            read[seq] = None
    return read[seq]
