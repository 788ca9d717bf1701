"""Pointer: what should be served, and every decision about it, as pure functions. It reads and writes nothing.

A **taint** begins at a version and covers all after it, until a revert to a clean version, or until someone accepts a
version all the same. It begins with a rejection by the judge, or with a rollback that left the version. A rollback
also taints every revert that is newer than its target.
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
    "Canary",
    "Pointer",
    "before",
    "hold",
    "promote",
    "publish",
    "raise_floor",
    "release",
    "rollback",
    "steps_back",
    "taints_of",
]

_Number = Annotated[int, Meta(ge=0, le=10**12 - 1)]
_Numbers = Annotated[tuple[_Number, ...], Meta(max_length=100_000)]
_NAMED_MAX = 5


class Canary(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A version that is tried on a share of the requests.

    Attributes:
        version: Which.
        share: Of requests, above 0 and below 1; 1 in shadow is all of them.
        shadow: Whether it only scores what the active version answers, and answers nothing.
    """

    version: VersionRef
    share: Annotated[float, Meta(gt=0, le=1)]
    # Not written where it is not set: nodes of before read the canaries they know.
    shadow: bool = False

    @property
    def kind(self) -> str:
        """What it is called: canary, or shadow."""
        return "shadow" if self.shadow else "canary"


class Pointer(Record, frozen=True, kw_only=True):
    """What should be served: one record of the pointer log.

    Attributes:
        seq: Its place in the log; 0 before the first.
        active: The version that is served; null before the first.
        previous: The version that was active before it.
        held: Whether newer versions are not followed.
        canary: A version that is tried beside the active one.
        taints: Versions at which rollbacks laid taints.
        accepted: Versions that end a taint, since someone said so.
        floor: Versions below this one may be gone, and are never served again.
        newest: The newest version that ever answered; 0 where a release of before wrote the record.
        run: The newest run that moved the pointer.
        by: Who moved it.
        reason: Why.
        wall_ms: When.
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
    def needed(self) -> dict[str, VersionRef]:
        """The versions that must stay readable, by what they are."""
        found = {"active": self.active, "previous": self.previous}
        if self.canary is not None:
            found[self.canary.kind] = self.canary.version
        return {name: ref for name, ref in found.items() if ref is not None}


def taints_of(pointer: Pointer, known: Sequence[Known]) -> dict[int, int]:
    """The tainted versions, each with the version at which its taint began.

    What is below the floor says nothing of what stays, for it may be gone, wholly or in part: what it did say is in the
    pointer since the floor was raised.

    Args:
        pointer: The pointer.
        known: The history, oldest first.
    """
    found: dict[int, int] = {}
    began, floor = 0, pointer.floor
    for at, one in enumerate(known):
        version = one.version
        if version >= floor and (not at or known[at - 1].version < floor):
            began = 0
        if one.content_of is not None:
            of = one.content_of.version
            began = 0 if of < floor <= version else found.get(of, 0)
        if version in pointer.accepted:
            began = 0
        elif version in pointer.taints or one.outcome == "rejected":
            began = version
        if began:
            found[version] = began
    return found


def publish(pointer: Pointer, known: Sequence[Known], version: int, run: int) -> Pointer:
    """Follow a version that a run has just published.

    Raises:
        RunOver: A newer run has moved the pointer.
        MoveRefused: The pointer is held or tries a canary, or the version is tainted, not judged, or not newer.
    """
    if run < pointer.run:
        message = f"run {run} wants to promote version {version}; run {pointer.run} has moved the pointer since"
        raise RunOver(message, help="end this trainer: a newer one has taken over")
    one = _served(pointer, known, version)
    if pointer.held:
        raise _refused(version, f"the pointer is held at {_name(pointer.active)}", "release it to follow again")
    if pointer.canary is not None:
        beside = "in shadow of" if pointer.canary.shadow else "on"
        tried = pointer.canary.version.version
        said = f"version {tried} is tried {beside} {pointer.canary.share:.0%} of the requests"
        raise _refused(version, said, "promote that version, or roll back, to follow newer ones again")
    if pointer.active is not None and version <= pointer.active.version and run == pointer.run:
        raise _refused(version, f"version {pointer.active.version} is active", "only a newer version can be promoted")
    _check_clean(pointer, known, one)
    return _moved(pointer, one.ref, run=run)


def promote(
    pointer: Pointer,
    known: Sequence[Known],
    version: int,
    *,
    accept: bool = False,
    share: float | None = None,
    shadow: bool = False,
) -> Pointer:
    """Serve a version because someone says so; a hold stays.

    Args:
        pointer: The pointer.
        known: The history, oldest first.
        version: Which version.
        accept: Whether its taint, or a judge's rejection, is to end with it.
        share: Try it on a share of the requests alone.
        shadow: Let it score that share beside the active version, which answers all of it.

    Raises:
        MoveRefused: It is tainted and not accepted, is not there, is below the floor, or is older than the active one
            with no hold that would keep it.
        UsageError: A share is none.
    """
    if share is not None and not (0 < share < 1 or (shadow and share == 1)):
        message = f"invalid share {share}"
        raise UsageError(message, help="give a share of the requests above 0 and below 1, such as 0.1")
    one = _served(pointer, known, version, whatever=True)
    if accept:
        pointer = structs.replace(pointer, accepted=_with(pointer.accepted, version))
    if not shadow:
        # In shadow whatever can be read may be tried: nobody is answered by it.
        _check_clean(pointer, known, one)
    if share is None:
        if pointer.active is not None and version < pointer.active.version and not pointer.held:
            said = (
                f"it is older than the active one, {pointer.active.version}; nodes would follow newer "
                "versions again at once"
            )
            raise _refused(version, said, f"`streamlearn rollback MODEL --to {version}` serves it and holds it")
        return _moved(pointer, one.ref)
    if pointer.active is None or pointer.active.version == version:
        said = "no version is active" if pointer.active is None else "it is the active one"
        raise _refused(version, said, f"a {'shadow' if shadow else 'canary'} is tried beside another version")
    newest = _newest(pointer, 0 if shadow else version)
    canary = Canary(version=one.ref, share=share, shadow=shadow)
    return structs.replace(pointer, seq=pointer.seq + 1, canary=canary, newest=newest)


def rollback(pointer: Pointer, known: Sequence[Known], to: int) -> Pointer:
    """Serve an older version and hold it. All newer versions are tainted, also those after a revert.

    If no newer version has answered that is still clean, it only holds the pointer, and nothing is tainted.

    Raises:
        MoveRefused: The version is newer than the active one, tainted, not whole, or below the floor.
    """
    if pointer.active is None or to > pointer.active.version:
        _served(pointer, known, to, whatever=True)
        said = f"it is newer than the active one, {_name(pointer.active)}"
        raise _refused(to, said, "use `promote` to serve a newer version")
    held = _held(pointer, known, to)
    # A version in shadow answered nobody: to end it is to say nothing of it.
    served = [ref.version for name, ref in pointer.needed.items() if name not in ("previous", "shadow")]
    tainted, newest = taints_of(pointer, known), _newest(pointer, 0)
    if max(served) > to or any(to < other.version <= newest and other.version not in tainted for other in known):
        newer = {other.version: other for other in known if other.version > to}
        # What is served may have been published since the history was read; it is left all the same.
        unread = {version for version in served if version > to} - newer.keys()
        # A revert ends a taint, and what was served may have come after one.
        reverts = {version for version, other in newer.items() if other.content_of is not None}
        left = min({*newer, *unread})
        held = structs.replace(
            held,
            taints=tuple(sorted({*held.taints, left, *reverts, *unread})),
            accepted=tuple(version for version in held.accepted if version < left),
        )
    return held


def hold(pointer: Pointer, known: Sequence[Known]) -> Pointer:
    """Stay at the active version, whichever it is by then; nothing is tainted.

    Raises:
        MoveRefused: The pointer is held already, a canary is tried, or the active version is not clean or not whole.
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
    """Follow again, from the newest version that is clean.

    Raises:
        MoveRefused: Every version after the active one is tainted.
    """
    tainted = taints_of(pointer, known)
    clean = [
        one
        for one in known
        if one.version >= pointer.floor and one.version not in tainted and one.is_promotable(pointer.accepted)
    ]
    newest = clean[-1] if clean else None
    active = 0 if pointer.active is None else pointer.active.version
    if newest is None or newest.version < active or (newest.version == active and _is_stuck(known, active, tainted)):
        after = [str(version) for version in tainted if version > active]
        named = f"{', '.join(after[:_NAMED_MAX])}{', ...' if len(after) > _NAMED_MAX else ''}"
        said = f"version {named} is tainted" if len(after) == 1 else f"versions {named} are tainted"
        message = f"no clean version after {_name(pointer.active)}: {said if after else 'it is the newest'}"
        raise MoveRefused(
            message,
            help="rewind training with `streamlearn rewind`, or serve a tainted version with `streamlearn "
            "promote MODEL VERSION --accept`",
        )
    freed = structs.replace(pointer, held=False, canary=None)
    return _moved(freed, newest.ref)


def raise_floor(pointer: Pointer, known: Sequence[Known], floor: int) -> Pointer:
    """Let all versions below one go. What stays is tainted or clean as before.

    Args:
        pointer: The pointer.
        known: The history, oldest first.
        floor: Versions below it go.

    Raises:
        MoveRefused: A version that is served or may be gone back to would go, or all would; or the floor would fall.
    """
    if floor < pointer.floor:
        message = f"floor {floor} is below {pointer.floor}"
        raise MoveRefused(message, help="a floor only rises: files below it may be gone")
    for name, ref in pointer.needed.items():
        if pointer.floor <= ref.version < floor:
            message = f"version {ref.version} cannot be deleted: it is {name}"
            raise MoveRefused(message, help="keep the active, the previous and the canary version")
    if known and known[-1].version < floor:
        # The next version would follow nothing that says whether it is tainted.
        message = f"version {known[-1].version} cannot be deleted: it is the newest"
        raise MoveRefused(message, help="keep the newest version: training continues from it")
    tainted = taints_of(pointer, known)
    stays = [one for one in known if one.version >= floor]
    found = structs.replace(
        pointer,
        seq=pointer.seq + 1,
        floor=floor,
        taints=tuple(version for version in pointer.taints if version >= floor),
        accepted=tuple(version for version in pointer.accepted if version >= floor),
    )
    # Where a taint began may be among what goes, of a version or of what a revert has the content of.
    while (wrong := _forgotten(tainted, taints_of(found, stays), stays)) is not None:
        found = structs.replace(found, taints=_with(found.taints, wrong))
    return found


def steps_back(pointer: Pointer, known: Sequence[Known], steps: int) -> int:
    """The version so many clean versions before the active one.

    Raises:
        MoveRefused: There are not so many.
    """
    return _older(pointer, known, steps, f"{steps} step{'s' if steps != 1 else ''} back")


def before(pointer: Pointer, known: Sequence[Known], wall_ms: int) -> int:
    """The newest clean version that was written before a time, and before the active one.

    Raises:
        MoveRefused: There is none.
    """
    return _older(pointer, [one for one in known if one.written_wall_ms < wall_ms], 1, f"before {_time(wall_ms)}")


def _forgotten(before: Mapping[int, int], after: Mapping[int, int], stays: Sequence[Known]) -> int | None:
    """The first version that stays and would be clean, and was tainted."""
    return next((one.version for one in stays if one.version in before and one.version not in after), None)


def _older(pointer: Pointer, known: Sequence[Known], steps: int, said: str) -> int:
    if steps < 1:
        message = f"{steps} steps"
        raise UsageError(message, help="give 1 or more")
    tainted, active = taints_of(pointer, known), 0 if pointer.active is None else pointer.active.version
    older = [
        one.version
        for one in known
        if one.version < active and one.version >= pointer.floor and one.version not in tainted
        if one.is_promotable(pointer.accepted)
    ]
    if len(older) < steps:
        count = "1 is" if len(older) == 1 else f"{len(older)} are"
        message = f"no clean version {said} (the active one is {_name(pointer.active)}): {count} older"
        raise MoveRefused(message, help="`streamlearn versions` lists the versions")
    return older[-steps]


def _served(pointer: Pointer, known: Sequence[Known], version: int, *, whatever: bool = False) -> Known:
    """A version that can be read; judged as well, unless whoever asks takes it upon himself."""
    one = next((one for one in known if one.version == version), None)
    tainted = taints_of(pointer, known)
    good = [str(other.version) for other in known if other.is_whole and other.version >= pointer.floor]
    clean = [name for name in good if int(name) not in tainted][-_NAMED_MAX:]
    there = (
        f"complete and clean are {', '.join(clean)}" if clean else "the model has no version that is complete and clean"
    )
    if version < pointer.floor:
        raise _refused(version, f"it is below the floor {pointer.floor}: its files may be gone", there)
    if one is None:
        raise _refused(version, "it is not a version of the history", there)
    if not one.is_whole:
        raise _refused(version, f"it is not complete: {one.lacks}", f"{there}; `streamlearn verify` gives advice")
    if not whatever and not one.is_promotable(pointer.accepted):
        raise _refused(
            version, f"the judge's verdict: {one.outcome or 'none yet'}", "wait for its verdict, or accept it"
        )
    return one


def _check_clean(pointer: Pointer, known: Sequence[Known], one: Known) -> None:
    began = taints_of(pointer, known).get(one.version)
    if began is not None:
        said = "it is tainted" if began == one.version else f"it is tainted since version {began}"
        help = f"`streamlearn promote MODEL {one.version} --accept` serves it anyway; `rewind` puts training back"
        raise _refused(one.version, said, help)


def _time(wall_ms: int) -> str:
    try:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{wall_ms} ms"


def _is_stuck(known: Sequence[Known], active: int, tainted: Mapping[int, int]) -> bool:
    """Whether there are versions after the active one, and the newest of them is tainted."""
    return known[-1].version > active and known[-1].version in tainted


def _held(pointer: Pointer, known: Sequence[Known], to: int) -> Pointer:
    """The pointer held at a clean version."""
    one = _served(pointer, known, to, whatever=True)
    _check_clean(pointer, known, one)
    return structs.replace(_moved(pointer, one.ref), held=True)


def _moved(pointer: Pointer, to: VersionRef, *, run: int | None = None) -> Pointer:
    previous = pointer.previous if pointer.active == to else pointer.active
    run, newest = pointer.run if run is None else run, _newest(pointer, to.version)
    moved = structs.replace(pointer, seq=pointer.seq + 1, active=to, previous=previous, canary=None)
    return structs.replace(moved, run=run, newest=newest)


def _newest(pointer: Pointer, version: int) -> int:
    """The newest version that has answered, with one that is about to."""
    answered = [ref.version for name, ref in pointer.needed.items() if name != "shadow"]
    return max(pointer.newest, version, *answered, 0)


def _with(versions: tuple[int, ...], version: int) -> tuple[int, ...]:
    return tuple(sorted({*versions, version}))


def _name(ref: VersionRef | None) -> str:
    return "none" if ref is None else str(ref.version)


def _refused(version: int, said: str, help: str) -> MoveRefused:
    return MoveRefused(f"version {version} cannot be served: {said}", help=help)
