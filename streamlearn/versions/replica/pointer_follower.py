"""Following: what a node has to do, decided from the pointer, the history and what it has staged. It does nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from streamlearn.versions.format.record import VersionRef
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.pointer.moves import Pointer, taints_of

__all__ = ["Plan", "kept_of", "plan_of", "wanted_of"]


@dataclass(frozen=True)
class Plan:
    """What a node does next.

    Attributes:
        begin: Tables are to be built from a base up to this version, which is the first that must be readable.
        why: Why they are; empty when there are none yet.
        is_urgent: Whether what the pointer wants cannot be read before that.
        to: The version to stage next, after the newest one staged; None when nothing is.
        is_wanted: Whether the pointer wants it, and not only foresight.
    """

    begin: VersionRef | None = None
    why: str = ""
    is_urgent: bool = False
    to: VersionRef | None = None
    is_wanted: bool = False


def wanted_of(pointer: Pointer) -> tuple[VersionRef, ...]:
    """The versions that requests are answered with: the active one, and the canary."""
    if pointer.active is None:
        return ()
    if pointer.canary is None or pointer.canary.version == pointer.active:
        return (pointer.active,)
    return (pointer.active, pointer.canary.version)


def plan_of(pointer: Pointer, known: Sequence[Known], staged: Sequence[VersionRef]) -> Plan:
    """What comes next.

    Args:
        pointer: Where the pointer stands.
        known: The history, oldest first; it may be older than the pointer.
        staged: The versions whose rows the tables have, oldest first; none when there are no tables.

    Examples:
        >>> from streamlearn.versions import Pointer, VersionRef
        >>> one, two = (VersionRef(version=version, run=1, sha256="0" * 64) for version in (1, 2))
        >>> plan_of(Pointer(seq=1, active=one), [], []).begin.version
        1
        >>> plan_of(Pointer(seq=2, active=two), [], [one]).to.version
        2
    """
    wanted = wanted_of(pointer)
    if not wanted:
        return Plan()
    first = min(wanted, key=_place)
    if not staged:
        return Plan(begin=first, is_urgent=True, is_wanted=True)
    newest = staged[-1]
    absent = [ref for ref in wanted if ref not in staged]
    for ref in absent:
        if ref.version <= newest.version:
            other = next((one for one in staged if one.version == ref.version), None)
            why = (
                f"version {ref} is not kept any more"
                if other is None
                else f"version {ref} is wanted, but the store has {other}"
            )
            return Plan(begin=first, why=why, is_urgent=True, is_wanted=True)
    if absent:
        return Plan(to=min(absent, key=_place), is_wanted=True)
    if _is_foreign(newest, known) and _is_known(wanted[0], known):
        return Plan(begin=first, why=f"version {newest} is no longer in the history")
    ahead = _ahead(pointer, known)
    return Plan(to=ahead) if ahead is not None and ahead.version > newest.version else Plan()


def kept_of(
    refs: Sequence[VersionRef], pointer: Pointer, known: Sequence[Known], active: VersionRef | None, count: int
) -> frozenset[VersionRef]:
    """Which versions stay readable.

    What is answered with and what was before it stay, so many clean versions older than the active one, and as many
    newer ones. All others are passed over: what they changed becomes the next one's.

    Args:
        refs: The versions that are staged and those that come after them, oldest first.
        pointer: Where the pointer stands.
        known: The history.
        active: What the node answers with now.
        count: How many older and how many newer ones.
    """
    at = pointer.active or active
    stay = {ref for ref in (active, *pointer.needed.values()) if ref is not None and ref in refs}
    if at is not None:
        tainted = taints_of(pointer, known)
        clean = [ref for ref in refs if ref.version not in tainted]
        older = [ref for ref in clean if ref.version < at.version]
        # What was active before is one of the older ones, however long ago.
        before = pointer.previous if pointer.previous in older else None
        last = [ref for ref in older if ref != before][::-1]
        stay |= set(last[: count - (before is not None)])
        stay |= set([ref for ref in clean if ref.version > at.version][-count:])
    return frozenset(stay)


def _ahead(pointer: Pointer, known: Sequence[Known]) -> VersionRef | None:
    """The newest version the pointer may move to by itself."""
    tainted = taints_of(pointer, known)
    active = pointer.active
    if active is None or not _is_known(active, known):
        return None
    clean = (one.ref for one in reversed(known) if one.is_whole and one.version not in tainted)
    found = next(clean, None)
    return found if found is not None and found.version > active.version else None


def _is_foreign(newest: VersionRef, known: Sequence[Known]) -> bool:
    """Whether a newer run went on from before this version. A history read before the version was is no sign."""
    if not known or _is_known(newest, known):
        return False
    last = known[-1].ref
    return last.run > newest.run or last.version > newest.version


def _is_known(ref: VersionRef, known: Collection[Known]) -> bool:
    return any(_place(one.ref) == _place(ref) for one in known)


def _place(ref: VersionRef) -> tuple[int, int]:
    return ref.version, ref.run
