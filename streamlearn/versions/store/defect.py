"""Defect: the names of the defects that versions in a store can have."""

from __future__ import annotations

from typing import Literal, TypeAlias

from streamlearn.errors import VersionDefect

__all__ = ["Defect", "defective"]

Defect: TypeAlias = Literal[
    "missing", "uncommitted", "gap", "duplicate", "reordered", "older_run", "foreign", "incompatible", "incomplete",
    "unreadable_format", "missing_file", "truncated", "corrupted", "unsigned", "not_finite",
]  # fmt: skip
"""The defects of a version.

- missing: the version does not exist, or the model has none.
- uncommitted: its folder has no manifest: the writer died, or is still at work.
- gap: a parent is missing, so later versions cannot be read.
- duplicate: a version exists twice, or two versions of one run follow the same one.
- reordered: a folder holds the version of another folder.
- older_run: a run wrote it after a newer run had taken over.
- foreign: it belongs to another model, or to another history than the chain.
- incompatible: features or tables differ along the chain, or from the tables to load.
- incomplete: its files do not cover every part of every table once, or do not match each other.
- unreadable_format: this release does not know its format.
- missing_file, truncated, corrupted: a file does not exist, is too short, or has other contents.
- unsigned: no trusted key has signed it (`versions.trusted_keys`).
- not_finite: it was written with NaN or infinite numbers; only `streamlearn verify --finite` counts this as a defect.
"""

_RESTORE = (
    "restore the file from a copy; versions after the next base do not need it. Without a copy, see "
    '"Versions in the store" in the documentation'
)
_HELP: dict[Defect, str] = {
    "missing": "`streamlearn versions` lists the versions",
    "uncommitted": (
        "wait for its writer, or read the previous version; a later sweep removes the files of a killed writer"
    ),
    "gap": "read a version before the gap, or one after a newer base",
    "duplicate": "one of the two was copied there by hand: move it away",
    "reordered": "the folders were exchanged or renamed: restore their names",
    "older_run": "read the newest version; this one is outside the model's history, and a later sweep removes it",
    "foreign": "move it to its own model's folder, or restore the version that was there",
    "incompatible": "train this application from its own base, or load it with the tables it was trained with",
    "incomplete": "read the previous version; this one was written incompletely",
    "unreadable_format": "read it with the release that wrote it, or a newer one",
    "missing_file": _RESTORE,
    "truncated": _RESTORE,
    "corrupted": _RESTORE,
    "unsigned": "find out who wrote it: remove it if that was not your trainer, else add the trainer's public "
    "key to versions.trusted_keys",
    "not_finite": "roll back to an earlier version, and rewind training",
}


def defective(path: str, defect: Defect, what: str, *, help: str = "") -> VersionDefect:
    """Make the error of a defect in a file or folder.

    `what` states the finding with both values; `help` replaces the usual advice.
    """
    return VersionDefect(f"{path}: {what} ({defect})", help=help or _HELP[defect], defect=defect, path=path)
