"""Pointer: the version to serve, and every decision about it, as pure functions.

A **taint** begins at a version and covers all later ones, until a revert to a clean version, or until an operator
accepts a version. It begins with a rejection by the judge, or with a rollback away from the version. A rollback also
taints every revert that is newer than its target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta, Struct, structs

from streamlearn.errors import MoveRefused, RunOver, UsageError
from streamlearn.versions.format.record import Record, VersionRef
from streamlearn.versions.format.version_summary import Known

__all__ = [
    "Canary", "Pointer", "before", "hold", "promote", "publish", "raise_floor", "release", "rewind_targets", "rollback",
    "standings", "steps_back", "taints_of",
]  # fmt: skip

_Number = Annotated[int, Meta(ge=0, le=10**12 - 1)]
_Numbers = Annotated[tuple[_Number, ...], Meta(max_length=100_000)]
_NAMED_MAX = 5


class Canary(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A version that is tried on a share of the requests.

    Attributes:
        share: Above 0 and below 1; in shadow up to 1.
        shadow: Whether it only scores the requests, and the active version answers them.
    """

    version: VersionRef
    share: Annotated[float, Meta(gt=0, le=1)]
    # Omitted if false, so that nodes of older releases can read the canaries they know.
    shadow: bool = False

    @property
    def kind(self) -> str:
        """Its name: canary, or shadow."""
        return "shadow" if self.shadow else "canary"


class Pointer(Record, frozen=True, kw_only=True):
    """The version to serve: one record of the pointer log.

    Attributes:
        seq: Its number in the log; 0 before the first.
        active: The version to serve; null before the first.
        held: Whether newer versions are not followed.
        taints: Versions at which rollbacks began taints.
        accepted: Versions at which an operator ended a taint.
        floor: Older versions may be deleted, and are never served again.
        newest: The newest version that ever answered; 0 in records of older releases.
        run: The newest run that moved the pointer.
        by: Who moved it.
    """

    seq: Annotated[int, Meta(ge=0, le=10**12 - 1)] = 0
    active: VersionRef | None = None
    previous: VersionRef | None = None
    held: bool = False
    canary: Canary | None = None
    taints: _Numbers = ()
    accepted: _Numbers = ()
    floor: _Number = 0
    newest: _Number = 0
    run: Annotated[int, Meta(ge=0, le=10**8 - 1)] = 0
    by: Annotated[str, Meta(max_length=200)] = ""
    reason: Annotated[str, Meta(max_length=2_000)] = ""
    wall_ms: Annotated[int, Meta(ge=0, le=1 << 62)] = 0

    @property
    def active_version(self) -> int:
        """The number of the active version; 0 before the first."""
        return 0 if self.active is None else self.active.version

    @property
    def needed(self) -> dict[str, VersionRef]:
        """The versions that must stay readable, by their role."""
        roles = {"active": self.active, "previous": self.previous}
        if self.canary is not None:
            roles[self.canary.kind] = self.canary.version
        return {name: ref for name, ref in roles.items() if ref is not None}


def taints_of(pointer: Pointer, known: Sequence[Known]) -> dict[int, int]:
    """Return the tainted versions of a history (oldest first), each with the version at which its taint began.

    Versions below the floor may be partly deleted, so they have no effect on later ones. Their taints were written into
    the pointer when the floor was raised.
    """
    taints: dict[int, int] = {}
    began, floor = 0, pointer.floor
    for index, entry in enumerate(known):
        version = entry.version
        if version >= floor and (not index or known[index - 1].version < floor):
            began = 0
        if entry.content_of is not None:
            content = entry.content_of.version
            began = 0 if content < floor <= version else taints.get(content, 0)
        if version in pointer.accepted:
            began = 0
        elif version in pointer.taints or entry.outcome == "rejected":
            began = version
        if began:
            taints[version] = began
    return taints


def standings(pointer: Pointer, known: Sequence[Known]) -> dict[int, str]:
    """Return the state of each version of a history.

    - active, canary: it is served; shadow: it only scores requests.
    - incomplete: it cannot be read.
    - rejected: the judge rejected it. tainted: it follows a version that was rejected or rolled back.
    - accepted: an operator ended its rejection or taint.
    - waiting: the judge has not decided yet.
    - passed: it may be served. unscored: likewise, but a check had nothing to check it by.
    """
    tainted = taints_of(pointer, known)
    return {entry.version: _standing(pointer, entry, tainted.get(entry.version, 0)) for entry in known}


def publish(pointer: Pointer, known: Sequence[Known], version: int, run: int) -> Pointer:
    """Follow a version that a run has just published.

    Raises:
        RunOver: A newer run has moved the pointer.
        MoveRefused: The pointer is held or tries a canary, or the version is tainted, not judged, or not newer.
    """
    if run < pointer.run:
        message = f"run {run} wants to promote version {version}; run {pointer.run} has moved the pointer since"
        raise RunOver(message, help="end this trainer: a newer one has taken over")
    entry = _readable(pointer, known, version, judged=True)
    if pointer.held:
        raise _refused(version, f"the pointer is held at {_name(pointer.active)}", "release it to follow again")
    if pointer.canary is not None:
        how = "in shadow of" if pointer.canary.shadow else "on"
        reason = f"version {pointer.canary.version.version} is tried {how} {pointer.canary.share:.0%} of the requests"
        raise _refused(version, reason, "promote that version, or roll back, to follow newer ones again")
    if version <= pointer.active_version and run == pointer.run:
        raise _refused(version, f"version {pointer.active_version} is active", "only a newer version can be promoted")
    _check_clean(pointer, known, entry)
    return _moved(pointer, entry.ref, run=run)


def promote(
    pointer: Pointer,
    known: Sequence[Known],
    version: int,
    *,
    accept: bool = False,
    share: float | None = None,
    shadow: bool = False,
) -> Pointer:
    """Serve a version at an operator's request; a hold stays.

    `accept` ends its taint, or overrules the judge's rejection. With a `share` it is only tried on this share of the
    requests. In `shadow` it only scores that share, and the active version answers all requests.

    Raises:
        MoveRefused: It is tainted and not accepted, not readable, below the floor, or older than the active one while
            the pointer is not held.
        UsageError: The share is invalid.
    """
    if share is not None and not (0 < share < 1 or (shadow and share == 1)):
        message = f"invalid share {share}"
        raise UsageError(message, help="give a share of the requests above 0 and below 1, such as 0.1")
    entry = _readable(pointer, known, version)
    if accept:
        pointer = structs.replace(pointer, accepted=_with(pointer.accepted, version))
    if not shadow:
        # A shadow answers no request, so it may be any readable version.
        _check_clean(pointer, known, entry)
    if share is None:
        if version < pointer.active_version and not pointer.held:
            reason = f"it is older than the active one, {pointer.active_version}; "
            reason += "nodes would follow newer versions again at once"
            raise _refused(version, reason, f"`streamlearn rollback MODEL --to {version}` serves it and holds it")
        return _moved(pointer, entry.ref)
    if pointer.active_version in (0, version):
        reason = "no version is active" if pointer.active is None else "it is the active one"
        raise _refused(version, reason, f"a {'shadow' if shadow else 'canary'} is tried beside another version")
    newest = _newest(pointer, 0 if shadow else version)
    canary = Canary(version=entry.ref, share=share, shadow=shadow)
    return structs.replace(pointer, seq=pointer.seq + 1, canary=canary, newest=newest)


def rollback(pointer: Pointer, known: Sequence[Known], to: int) -> Pointer:
    """Serve an older version and hold it. All newer versions become tainted, also those after a revert.

    If no newer clean version has answered, this only holds the pointer, and taints nothing.

    Raises:
        MoveRefused: The version is newer than the active one, tainted, incomplete, or below the floor.
    """
    if pointer.active is None or to > pointer.active_version:
        _readable(pointer, known, to)
        reason = f"it is newer than the active one, {_name(pointer.active)}"
        raise _refused(to, reason, f"`streamlearn promote MODEL {to}` serves a newer version")
    held = _held(pointer, known, to)
    # A version in shadow answered no request: ending it does not taint it.
    served = [ref.version for role, ref in pointer.needed.items() if role not in ("previous", "shadow")]
    tainted, newest = taints_of(pointer, known), _newest(pointer, 0)
    if max(served) > to or any(to < entry.version <= newest and entry.version not in tainted for entry in known):
        newer = {entry.version: entry for entry in known if entry.version > to}
        # A served version may have been published since the history was read; it is tainted too.
        unread = {version for version in served if version > to} - newer.keys()
        # A revert ends a taint, and the served version may have followed one.
        reverts = {version for version, entry in newer.items() if entry.content_of is not None}
        first = min({*newer, *unread})
        held = structs.replace(
            held,
            taints=tuple(sorted({*held.taints, first, *reverts, *unread})),
            accepted=tuple(version for version in held.accepted if version < first),
        )
    return held


def hold(pointer: Pointer, known: Sequence[Known]) -> Pointer:
    """Stay at the version that is active by then; nothing becomes tainted.

    Raises:
        MoveRefused: The pointer is held already, tries a canary, or its active version is tainted or incomplete.
    """
    if pointer.held:
        message = f"the pointer is held already, at {_name(pointer.active)}"
        raise MoveRefused(message, help="nodes follow newer versions only after a release")
    if pointer.canary is not None and not pointer.canary.shadow:
        message = f"version {pointer.canary.version.version} is tried on {pointer.canary.share:.0%} of the requests"
        raise MoveRefused(message, help="nodes do not follow newer versions meanwhile; roll back or promote to end it")
    if pointer.active is None:
        message = "no version is active"
        raise MoveRefused(message, help="promote a version first")
    return _held(pointer, known, pointer.active.version)


def release(pointer: Pointer, known: Sequence[Known]) -> Pointer:
    """Follow new versions again, from the newest clean one; raises `MoveRefused` if none is clean.

    A pointer that does so already is returned as it is.
    """
    tainted, active = taints_of(pointer, known), pointer.active_version
    clean = [entry for entry in known if _is_clean(pointer, entry, tainted)]
    newest = clean[-1] if clean else None
    is_stuck = bool(known) and known[-1].version > active and known[-1].version in tainted
    if newest is None or newest.version < active or (newest.version == active and is_stuck):
        after = [str(version) for version in tainted if version > active]
        named = f"{', '.join(after[:_NAMED_MAX])}{', ...' if len(after) > _NAMED_MAX else ''}"
        reason = f"version {named} is tainted" if len(after) == 1 else f"versions {named} are tainted"
        message = f"no clean version after {_name(pointer.active)}: {reason if after else 'it is the newest'}"
        help = "wait for the next version"
        if after:
            help = (
                "wait if `streamlearn versions MODEL` says that training was asked to go back; otherwise put it back "
                f"with `streamlearn rewind MODEL --to {active}` (with --skip past data that was wrong), "
                f"or serve a tainted version with `streamlearn promote MODEL {after[-1]} --accept`"
            )
        raise MoveRefused(message, help=help)
    if newest.ref == pointer.active and not pointer.held and pointer.canary is None:
        return pointer
    return _moved(structs.replace(pointer, held=False, canary=None), newest.ref)


def rewind_targets(pointer: Pointer, known: Sequence[Known]) -> list[int]:
    """Return the versions to which training may go back, oldest first."""
    tainted = taints_of(pointer, known)
    return [
        entry.version
        for entry in known
        if entry.is_whole and entry.version >= pointer.floor and entry.version not in tainted
    ]


def raise_floor(pointer: Pointer, known: Sequence[Known], floor: int) -> Pointer:
    """Allow all versions below `floor` to be deleted; later versions stay tainted or clean as before.

    Raises:
        MoveRefused: A version that is served or may be rolled back to would go, or all would; or the floor would fall.
    """
    if floor < pointer.floor:
        message = f"floor {floor} is below {pointer.floor}"
        raise MoveRefused(message, help="a floor only rises: files below it may be gone")
    for role, ref in pointer.needed.items():
        if pointer.floor <= ref.version < floor:
            message = f"version {ref.version} cannot be deleted: it is {role}"
            raise MoveRefused(message, help="keep the active, the previous and the canary version")
    if known and known[-1].version < floor:
        # Without it, the history could not tell whether the next version is tainted.
        message = f"version {known[-1].version} cannot be deleted: it is the newest"
        raise MoveRefused(message, help="keep the newest version: training continues from it")
    tainted = taints_of(pointer, known)
    kept = [entry for entry in known if entry.version >= floor]
    raised = structs.replace(
        pointer,
        seq=pointer.seq + 1,
        floor=floor,
        taints=tuple(version for version in pointer.taints if version >= floor),
        accepted=tuple(version for version in pointer.accepted if version >= floor),
    )
    # A taint may have begun below the floor, at a version or at the content of a revert.
    while (lost := _lost_taint(tainted, taints_of(raised, kept), kept)) is not None:
        raised = structs.replace(raised, taints=_with(raised.taints, lost))
    return raised


def steps_back(pointer: Pointer, known: Sequence[Known], steps: int) -> int:
    """Return the clean version `steps` before the active one; raises `MoveRefused` if there are fewer."""
    return _older(pointer, known, steps, f"{steps} step{'s' if steps != 1 else ''} back")


def before(pointer: Pointer, known: Sequence[Known], wall_ms: int) -> int:
    """Return the newest clean version before the active one and a time; raises `MoveRefused` if there is none."""
    earlier = [entry for entry in known if entry.written_wall_ms < wall_ms]
    return _older(pointer, earlier, 1, f"before {_time(wall_ms)}")


def _standing(pointer: Pointer, entry: Known, began: int) -> str:
    for role, ref in pointer.needed.items():
        if ref.version == entry.version and role != "previous":
            return f"{role} (held)" if role == "active" and pointer.held else role
    if not entry.is_whole:
        return "incomplete"
    if entry.outcome == "rejected" and entry.version not in pointer.accepted:
        return "rejected"
    if began:
        return f"tainted by {began}" if began != entry.version else "tainted"
    if entry.version in pointer.accepted:
        return "accepted"
    return entry.outcome or "waiting"


def _lost_taint(before: Mapping[int, int], after: Mapping[int, int], kept: Sequence[Known]) -> int | None:
    """Return the first kept version that was tainted and would become clean."""
    return next((entry.version for entry in kept if entry.version in before and entry.version not in after), None)


def _is_clean(pointer: Pointer, entry: Known, tainted: Mapping[int, int]) -> bool:
    is_untainted = entry.version >= pointer.floor and entry.version not in tainted
    return is_untainted and entry.is_promotable(pointer.accepted)


def _older(pointer: Pointer, known: Sequence[Known], steps: int, what: str) -> int:
    if steps < 1:
        message = f"{steps} steps"
        raise UsageError(message, help="give 1 or more")
    tainted, active = taints_of(pointer, known), pointer.active_version
    clean = [entry for entry in known if entry.version < active and _is_clean(pointer, entry, tainted)]
    older = [entry.version for entry in clean if not entry.is_untrained]
    if len(older) < steps:
        count = "1 is" if len(older) == 1 else f"{len(older)} are"
        untrained = [entry.version for entry in clean if entry.is_untrained]
        but = f", and version {untrained[-1]}, which has learned nothing" if untrained else ""
        message = f"no clean version {what} (the active one is {_name(pointer.active)}): {count} older{but}"
        hint = f"; serve the untrained model with --to {untrained[-1]}" if untrained else ""
        raise MoveRefused(message, help=f"`streamlearn versions` lists the versions{hint}")
    return older[-steps]


def _readable(pointer: Pointer, known: Sequence[Known], version: int, *, judged: bool = False) -> Known:
    """Return a version that can be read, and that the judge passed if `judged`; refuse any other."""
    entry = next((entry for entry in known if entry.version == version), None)
    tainted = taints_of(pointer, known)
    complete = [each.version for each in known if each.is_whole and each.version >= pointer.floor]
    clean = ", ".join(str(each) for each in [each for each in complete if each not in tainted][-_NAMED_MAX:])
    advice = f"complete and clean are {clean}" if clean else "the model has no version that is complete and clean"
    if version < pointer.floor:
        raise _refused(version, f"it is below the floor {pointer.floor}: its files may be gone", advice)
    if entry is None:
        raise _refused(version, "it is not a version of the history", advice)
    if not entry.is_whole:
        raise _refused(version, f"it is not complete: {entry.lacks}", f"{advice}; `streamlearn verify` gives advice")
    if judged and not entry.is_promotable(pointer.accepted):
        reason = f"the judge's verdict: {entry.outcome or 'none yet'}"
        raise _refused(version, reason, "wait for its verdict, or accept it")
    return entry


def _check_clean(pointer: Pointer, known: Sequence[Known], entry: Known) -> None:
    began = taints_of(pointer, known).get(entry.version)
    if began is not None:
        targets = rewind_targets(pointer, known)
        back = f"; `streamlearn rewind MODEL --to {targets[-1]}` takes training back" if targets else ""
        reason = "it is tainted" if began == entry.version else f"it is tainted since version {began}"
        help = f"`streamlearn promote MODEL {entry.version} --accept` serves it anyway{back}"
        raise _refused(entry.version, reason, help)


def _time(wall_ms: int) -> str:
    try:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{wall_ms} ms"


def _held(pointer: Pointer, known: Sequence[Known], to: int) -> Pointer:
    """Hold the pointer at a clean version."""
    entry = _readable(pointer, known, to)
    _check_clean(pointer, known, entry)
    return structs.replace(_moved(pointer, entry.ref), held=True)


def _moved(pointer: Pointer, to: VersionRef, *, run: int | None = None) -> Pointer:
    previous = pointer.previous if pointer.active == to else pointer.active
    run, newest = pointer.run if run is None else run, _newest(pointer, to.version)
    moved = structs.replace(pointer, seq=pointer.seq + 1, active=to, previous=previous, canary=None)
    return structs.replace(moved, run=run, newest=newest)


def _newest(pointer: Pointer, version: int) -> int:
    """Return the newest version that has answered, or is about to."""
    answered = [ref.version for role, ref in pointer.needed.items() if role != "shadow"]
    return max(pointer.newest, version, *answered, 0)


def _with(versions: tuple[int, ...], version: int) -> tuple[int, ...]:
    return tuple(sorted({*versions, version}))


def _name(ref: VersionRef | None) -> str:
    return "none" if ref is None else str(ref.version)


def _refused(version: int, reason: str, help: str) -> MoveRefused:
    return MoveRefused(f"version {version} cannot be served: {reason}", help=help)
