"""Verdict: what the judge said of a version, beside its manifest; written once, and the judge's alone."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from streamlearn.errors import FileMissing, FileTaken
from streamlearn.versions.format.record import Record, VersionRef, decode_record, encode_record
from streamlearn.versions.format.version_summary import Outcome
from streamlearn.versions.store.interface import Store

__all__ = ["VERDICT_NAME", "Finding", "Verdict", "read_verdict", "write_verdict"]

VERDICT_NAME = "verdict.json"
_BYTES_MAX = 4 << 20
_HELP = "restore it from a copy; or remove it: the publisher then judges the version again, by its manifest alone"


class Finding(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one check found.

    Attributes:
        check: Its name.
        is_ok: Whether the version may be promoted, as far as it goes.
        said: What it saw, for people.
        values: Numbers it saw, by name.
    """

    check: Annotated[str, Meta(min_length=1, max_length=200)]
    is_ok: bool
    said: Annotated[str, Meta(max_length=2_000)] = ""
    values: Annotated[dict[str, float], Meta(max_length=1_000)] = {}


class Verdict(Record, frozen=True, kw_only=True):
    """What the judge said.

    Attributes:
        version: Of which version.
        outcome: Whether it may be promoted.
        findings: Of each check, in order.
        against: The version it was compared with; null when none was active.
        wall_ms: When.
    """

    version: VersionRef
    outcome: Outcome
    findings: Annotated[tuple[Finding, ...], Meta(max_length=1_000)] = ()
    against: VersionRef | None = None
    wall_ms: Annotated[int, Meta(ge=0, le=1 << 62)] = 0


def read_verdict(store: Store, folder: str) -> Verdict | None:
    """The verdict on the version of a folder; None before there is one.

    Raises:
        VersionDefect: It is damaged.
    """
    path = f"{folder}/{VERDICT_NAME}"
    try:
        return decode_record(store.read(path, bytes_max=_BYTES_MAX), Verdict, path, help=_HELP)
    except FileMissing:
        return None


def write_verdict(store: Store, folder: str, verdict: Verdict) -> Verdict:
    """Write the verdict on the version of a folder; one that is there already stands, and is given back."""
    try:
        store.create(f"{folder}/{VERDICT_NAME}", encode_record(verdict))
    except FileTaken:
        there = read_verdict(store, folder)
        assert there is not None
        return there
    return verdict
