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
    "not_finite",
]
"""What can be wrong.

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
- not_finite: it was written with numbers that are NaN or infinite; a defect to `streamlearn verify --finite` alone.
"""

_HELP: dict[Defect, str] = {
    "missing": "list the versions there are",
    "uncommitted": "wait for its writer, or read the version before it; what a killed writer left is swept later",
    "gap": "read a version up to the gap, or one after a newer base",
    "duplicate": "one of the two was copied there by hand: move it away",
    "reordered": "the folders were exchanged or renamed: give each its own name again",
    "older_run": "read the newest version; this one is not of the model's history and is swept later",
    "foreign": "move it to its own model's folder, or restore the version that was there",
    "incompatible": "train this application from its own base, or load it with the tables it was trained with",
    "incomplete": "read the version before it; this one cannot have been written whole",
    "unreadable_format": "read it with a release as new as the one that wrote it",
    "missing_file": "read again from the last base, or restore the file from a copy",
    "truncated": "read again from the last base, or restore the file from a copy",
    "corrupted": "read again from the last base, or restore the file from a copy",
    "not_finite": "roll back to a version before it, and rewind training",
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
