"""Plans of a node: its next step, decided from the pointer, the history and its staged versions. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from streamlearn.versions.format.record import VersionRef
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.pointer.moves import Pointer, taints_of

__all__ = ["Plan", "kept_of", "plan_of", "wanted_of"]


@dataclass(frozen=True)
class Plan:
    """The next step of a node.

    Attributes:
        begin: Build tables from a base up to this version, the first that must be readable.
        why: Why tables are rebuilt; empty when there are none yet.
        is_urgent: Whether the pointer's versions cannot be read before the build.
        to: The version to stage next, after the newest staged one; None for none.
        is_wanted: Whether the pointer needs the step now; otherwise it stages ahead.
    """

    begin: VersionRef | None = None
    why: str = ""
    is_urgent: bool = False
    to: VersionRef | None = None
    is_wanted: bool = False


def wanted_of(pointer: Pointer) -> tuple[VersionRef, ...]:
    """The versions that answer requests: the active one, and the canary."""
    if pointer.active is None:
        return ()
    if pointer.canary is None or pointer.canary.version == pointer.active:
        return (pointer.active,)
    return (pointer.active, pointer.canary.version)


def plan_of(pointer: Pointer, known: Sequence[Known], staged: Sequence[VersionRef]) -> Plan:
    """The next step.

    `known` is the history, oldest first; it may be older than the pointer. `staged` are the versions whose rows the
    tables have, oldest first; empty without tables.

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
    first = min(wanted, key=_order)
    if not staged:
        return Plan(begin=first, is_urgent=True, is_wanted=True)
    newest = staged[-1]
    absent = [ref for ref in wanted if ref not in staged]
    for ref in absent:
        if ref.version <= newest.version:
            other = next((present for present in staged if present.version == ref.version), None)
            why = (
                f"version {ref} is not kept any more"
                if other is None
                else f"version {ref} is wanted, but the store has {other}"
            )
            return Plan(begin=first, why=why, is_urgent=True, is_wanted=True)
    if absent:
        return Plan(to=min(absent, key=_order), is_wanted=True)
    if _is_foreign(newest, known) and _is_known(wanted[0], known):
        return Plan(begin=first, why=f"version {newest} is no longer in the history")
    ahead = _ahead(pointer, known)
    return Plan(to=ahead) if ahead is not None and ahead.version > newest.version else Plan()


def kept_of(
    refs: Sequence[VersionRef], pointer: Pointer, known: Sequence[Known], active: VersionRef | None, count: int
) -> frozenset[VersionRef]:
    """The versions that stay readable, from the staged versions and those to stage after them, oldest first.

    These are the node's active version, the versions that the pointer needs, and the nearest `count` clean versions
    below the active one (the previously active one among them) and above it. All others are passed over: their changes
    become part of the next version's.
    """
    at = pointer.active or active
    stay = {ref for ref in (active, *pointer.needed.values()) if ref is not None and ref in refs}
    if at is not None:
        tainted = taints_of(pointer, known)
        clean = [ref for ref in refs if ref.version not in tainted]
        older = [ref for ref in clean if ref.version < at.version]
        # The previously active version counts as one of the older ones, however old it is.
        before = pointer.previous if pointer.previous in older else None
        last = [ref for ref in older if ref != before][::-1]
        stay |= set(last[: count - (before is not None)])
        stay |= set([ref for ref in clean if ref.version > at.version][-count:])
    return frozenset(stay)


def _ahead(pointer: Pointer, known: Sequence[Known]) -> VersionRef | None:
    """The newest version that a publisher may promote next."""
    tainted = taints_of(pointer, known)
    active = pointer.active
    if active is None or not _is_known(active, known):
        return None
    clean = (version.ref for version in reversed(known) if version.is_whole and version.version not in tainted)
    newest = next(clean, None)
    return newest if newest is not None and newest.version > active.version else None


def _is_foreign(newest: VersionRef, known: Sequence[Known]) -> bool:
    """Whether a newer run continued from before this version, which a history older than the version cannot show."""
    if not known or _is_known(newest, known):
        return False
    last = known[-1].ref
    return last.run > newest.run or last.version > newest.version


def _is_known(ref: VersionRef, known: Collection[Known]) -> bool:
    return any(_order(version.ref) == _order(ref) for version in known)


def _order(ref: VersionRef) -> tuple[int, int]:
    return ref.version, ref.run
