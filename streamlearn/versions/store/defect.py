"""Defect: the names of what can be wrong with versions in a store."""

from __future__ import annotations

from typing import Literal, TypeAlias

from streamlearn.errors import VersionDefect

__all__ = ["Defect", "defective"]

Defect: TypeAlias = Literal[
    "missing",
    "uncommitted",
    "gap",
    "duplicate",
    "reordered",
    "older_run",
    "foreign",
    "incompatible",
    "incomplete",
    "unreadable_format",
    "missing_file",
    "truncated",
    "corrupted",
    "unsigned",
    "not_finite",
]
"""The defects a version can have.

- missing: no such version, or no version at all.
- uncommitted: its folder is there and its manifest is not: its writer died, or is at work.
- gap: a parent is not there, so the versions after it cannot be read.
- duplicate: a version is there twice, or two versions of one run follow the same one.
- reordered: a folder holds the version of another folder.
- older_run: a run wrote on after a newer one had taken over.
- foreign: of another model, or of another history than the chain.
- incompatible: features or tables are not the same along the chain, or not those of the tables to be loaded.
- incomplete: its files do not cover every part of every table once, or do not belong together.
- unreadable_format: written in a format this release does not know.
- missing_file, truncated, corrupted: one of its files is not there, is too short, or holds something else.
- unsigned: no trusted key has signed it (`versions.trusted_keys`).
- not_finite: it was written with numbers that are NaN or infinite; a defect to `streamlearn verify --finite` alone.
"""

_HELP: dict[Defect, str] = {
    "missing": "`streamlearn versions` lists the versions",
    "uncommitted": (
        "wait for its writer, or read the previous version; a later sweep removes the files of a killed writer"
    ),
    "gap": "read a version before the gap, or one after a newer base",
    "duplicate": "one of the two was copied there by hand: move it away",
    "reordered": "the folders were exchanged or renamed: give each its own name again",
    "older_run": "read the newest version; this one is outside the model's history, and a later sweep removes it",
    "foreign": "move it to its own model's folder, or restore the version that was there",
    "incompatible": "train this application from its own base, or load it with the tables it was trained with",
    "incomplete": "read the previous version; this one was written incompletely",
    "unreadable_format": "read it with the release that wrote it, or a newer one",
    "missing_file": "restore the file from a copy; versions after the next base do not need it",
    "truncated": "restore the file from a copy; versions after the next base do not need it",
    "corrupted": "restore the file from a copy; versions after the next base do not need it",
    "unsigned": "find out who wrote it: remove it if that was not your trainer, else add the trainer's public "
    "key to versions.trusted_keys",
    "not_finite": "roll back to an earlier version, and rewind training",
}


def defective(path: str, defect: Defect, what: str, *, help: str = "") -> VersionDefect:
    """The error of a defect.

    Args:
        path: The file or folder.
        defect: Its name.
        what: What was found, with both values.
        help: What to do about it, where that is another thing than with the files of a version.
    """
    return VersionDefect(f"{path}: {what} ({defect})", help=help or _HELP[defect], defect=defect, path=path)
