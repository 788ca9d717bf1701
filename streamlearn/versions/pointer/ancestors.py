"""Ancestors: the versions whose stored answers may stand in for those of the version that answers. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from streamlearn.versions.format.record import VersionRef
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.pointer.moves import Pointer, taints_of

__all__ = ["usable_versions"]


def usable_versions(
    pointer: Pointer, known: Sequence[Known], answering: VersionRef, count: int
) -> tuple[VersionRef, ...]:
    """Return a version and those of its last `count` ancestors that are not tainted, newest first.

    `known` is the history, oldest first. The ancestor of a version is the one before it, and that of a revert the
    version whose content it has; versions that a revert left behind are nobody's ancestors. Nothing is usable while the
    version itself is tainted or unknown, and nothing below the floor.

    Examples:
        >>> from streamlearn.versions import VersionRef
        >>> from streamlearn.versions.format.version_summary import Known
        >>> refs = [VersionRef(version=version, run=1, sha256=f"{version:064x}") for version in (1, 2, 3)]
        >>> known = [Known(ref=ref, kind="delta", outcome="passed") for ref in refs]
        >>> [ref.version for ref in usable_versions(Pointer(active=refs[2], taints=(4,)), known, refs[2], 1)]
        [3, 2]
    """
    places = {entry.version: place for place, entry in enumerate(known)}
    place, tainted = places.get(answering.version), taints_of(pointer, known)
    if place is None or known[place].ref != answering or answering.version in tainted:
        return ()
    usable: list[VersionRef] = []
    for _ in range(count + 1):
        entry = known[place]
        if entry.version < pointer.floor:
            break
        if entry.version not in tainted:
            usable.append(entry.ref)
        content = entry.content_of
        before = place - 1 if content is None else places.get(content.version, -1)
        if before < 0:
            break
        place = before
    return tuple(usable)
