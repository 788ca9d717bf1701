"""Verdict: the judge's decision on a version, beside its manifest. Only the judge writes it, once."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from streamlearn.errors import FileMissing, FileTaken
from streamlearn.versions.format.record import Record, VersionRef, decode_record, encode_record
from streamlearn.versions.format.version_summary import Outcome
from streamlearn.versions.store.interface import Store

__all__ = ["Finding", "Verdict", "read_verdict", "write_verdict"]

_NAME = "verdict.json"
_BYTES_MAX = 4 << 20
_HELP = "restore it from a copy; or remove it: the publisher then judges the version again, by its manifest alone"


class Finding(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The result of one check: whether it lets the version be promoted, and the reason in words and numbers.

    Attributes:
        is_checked: False if there was nothing to check it by, such as too few samples; `is_ok` is then true.
    """

    check: Annotated[str, Meta(min_length=1, max_length=200)]
    is_ok: bool
    is_checked: bool = True
    said: Annotated[str, Meta(max_length=2_000)] = ""
    values: Annotated[dict[str, float], Meta(max_length=1_000)] = {}


class Verdict(Record, frozen=True, kw_only=True):
    """The judge's decision on a version.

    Attributes:
        findings: One for each check, in order.
        against: The active version it was compared with, if there was one.
    """

    version: VersionRef
    outcome: Outcome
    findings: Annotated[tuple[Finding, ...], Meta(max_length=1_000)] = ()
    against: VersionRef | None = None
    wall_ms: Annotated[int, Meta(ge=0, le=1 << 62)] = 0


def read_verdict(store: Store, folder: str) -> Verdict | None:
    """Read the verdict on the version in a folder, if there is one; raises `VersionDefect` if it is damaged."""
    path = f"{folder}/{_NAME}"
    try:
        return decode_record(store.read(path, bytes_max=_BYTES_MAX), Verdict, path, help=_HELP)
    except FileMissing:
        return None


def write_verdict(store: Store, folder: str, verdict: Verdict) -> Verdict:
    """Write the verdict on the version in a folder; an existing verdict stays, and is returned."""
    try:
        store.create(f"{folder}/{_NAME}", encode_record(verdict))
    except FileTaken:
        existing = read_verdict(store, folder)
        assert existing is not None
        return existing
    return verdict
