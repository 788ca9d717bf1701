"""Rebuild: a registry corrected from the store, whatever it contained. It never writes to the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache

from msgspec import Struct

from streamlearn.errors import FileMissing, RegistryDefect, VersionDefect
from streamlearn.versions.format.history import History
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.pointer.moves import Pointer
from streamlearn.versions.pointer.pointer_log import PointerLog
from streamlearn.versions.pointer.registry import Note, Registry
from streamlearn.versions.store.interface import Store

__all__ = ["Rebuilt", "is_of", "is_stuck", "kind_of_move", "last_not_gc", "rebuild_registry"]

_BACK_MAX = 100


class Rebuilt(Struct, frozen=True, kw_only=True):
    """The changes that a rebuild made.

    Attributes:
        seq: The move of the newest pointer, which the registry now has.
        pointer: Whether its copy of the pointer was missing or older.
        put: Versions that it lacked, or that differed.
        dropped: Versions that the store does not have.
    """

    seq: int
    pointer: bool
    put: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    notes: int = 0


def rebuild_registry(
    store: Store, registry: Registry, *, history: History | None = None, notes_max: int | None = None
) -> Rebuilt:
    """Make an empty, stale or wrong registry match the store. A second rebuild changes nothing.

    Nodes and acks stay, unless the registry cannot be decoded, belongs to another history, or is stuck at an older
    move. Then it is cleared, and live nodes report again.

    A given `history` must not use summaries from a registry. `notes_max` limits how many of the last moves are checked
    for missing lines of the audit log; by default all that a registry keeps.

    Raises:
        RegistryUnreachable: The registry did not answer.
        StoreUnreachable: The store did not answer.
        VersionDefect: The newest record of the pointer is damaged; nothing was changed.
    """
    log = PointerLog(store, registry.model)
    log.newest()
    if not is_of(registry, log):
        registry.clear()
    known = (history or History(store, registry.model)).read()
    put, dropped = _sync_versions(registry, known)
    # Read after `clear`, which may have removed the announcement of a concurrent move.
    newest = log.newest()
    is_newer = newest.seq > 0 and registry.announce(newest)
    if newest.seq and not is_newer and is_stuck(registry, newest):
        registry.clear()
        put, _ = _sync_versions(registry, known)
        newest = log.newest()
        is_newer = registry.announce(newest)
    notes = _add_notes(registry, log, notes_max)
    return Rebuilt(seq=newest.seq, pointer=is_newer, put=put, dropped=dropped, notes=notes)


def last_not_gc(pointer: Pointer, read: Callable[[int], Pointer]) -> Pointer:
    """Return the newest move that is not one of `gc`, as far as `read` has moves; `gc` repeats author and reason."""
    newest = pointer
    with suppress(FileMissing, KeyError, VersionDefect):
        for _ in range(min(_BACK_MAX, pointer.seq - 1)):
            before = read(newest.seq - 1)
            if newest.floor == before.floor:
                break
            newest = before
    return newest


def kind_of_move(before: Pointer, after: Pointer) -> str:
    """Return the audit log's name of a move, from its changes."""
    if after.floor > before.floor:
        return "floor"
    if before.held and not after.held:
        return "release"
    is_back = before.active is not None and after.active is not None and after.active_version < before.active_version
    stays = after.active == before.active and after.canary == before.canary
    if after.held and (not before.held or after.taints != before.taints or is_back or stays):
        return "rollback"
    if after.canary is not None and after.canary != before.canary:
        return after.canary.kind
    return "floor" if stays else "promote"


def is_of(registry: Registry, log: PointerLog) -> bool:
    """Return whether a registry can be decoded, and its pointer is one of the store's moves."""
    try:
        copy = registry.pointer()
        registry.versions(), registry.notes(registry.settings.notes_max), registry.nodes()
    except RegistryDefect:
        return False
    # After the registry, because moves go to the store first. By its number too, because a listing may be behind.
    log.begin_near(0 if copy is None else copy.seq)
    newest = log.newest()
    if copy is None or copy.seq > newest.seq:
        return copy is None
    try:
        return copy == (newest if copy.seq == newest.seq else log.read(copy.seq))
    except (FileMissing, VersionDefect):
        return True


def is_stuck(registry: Registry, refused: Pointer) -> bool:
    """Return whether a registry that refused to announce a move has an older one, so that its number is wrong."""
    copy = registry.pointer()
    return copy is None or copy.seq < refused.seq


def _sync_versions(registry: Registry, known: Sequence[Known]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Make the registry's versions those of the store, and return the versions put and dropped."""
    current = {entry.version: entry for entry in registry.versions()}
    put = [entry for entry in known if current.get(entry.version) != entry]
    dropped = sorted(current.keys() - {entry.version for entry in known})
    if put:
        registry.put_versions(put)
    if dropped:
        registry.drop_versions(dropped)
    return tuple(entry.version for entry in put), tuple(dropped)


def _add_notes(registry: Registry, log: PointerLog, notes_max: int | None) -> int:
    """Add missing lines of moves to the audit log, and return their number."""
    kept_max = registry.settings.notes_max
    notes = registry.notes(kept_max)
    noted = {note.seq for note in notes}
    # A full log has dropped its oldest lines, which must not return.
    oldest_ms = notes[0].wall_ms if len(notes) >= kept_max else -1
    seqs = log.seqs()[-(kept_max if notes_max is None else min(kept_max, notes_max)) :]

    @cache
    def read(seq: int) -> Pointer | None:
        with suppress(FileMissing, VersionDefect):
            return log.read(seq) if seq else Pointer()
        return None

    count = 0
    for seq in seqs:
        if seq in noted:
            continue
        before, after = read(seq - 1), read(seq)
        if after is None or after.wall_ms <= oldest_ms:
            continue
        registry.note(Note.of_move(after, "move" if before is None else kind_of_move(before, after)))
        count += 1
    return count
