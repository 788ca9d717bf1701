"""VersionNote: what a person wrote about a version, as a numbered file in its folder. Notes go with the version."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from streamlearn.errors import FileTaken, UsageError
from streamlearn.versions.format.record import Record
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.sequence import Sequence

__all__ = ["NOTES_MAX", "TEXT_CHARS_MAX", "VersionNote", "add_note", "read_notes"]

NOTES_MAX = 100
"""Most notes on one version."""
TEXT_CHARS_MAX = 2_000

_HELP = "restore it from a copy, or remove it"


class VersionNote(Record, frozen=True, kw_only=True):
    """A note on a version."""

    text: Annotated[str, Meta(min_length=1, max_length=TEXT_CHARS_MAX)]
    by: Annotated[str, Meta(max_length=200)] = ""
    wall_ms: Annotated[int, Meta(ge=0, le=1 << 62)] = 0


def read_notes(store: Store, folder: str) -> list[VersionNote]:
    """Read the notes on the version in a folder, oldest first; raises `VersionDefect` if one is damaged."""
    notes = _notes(store, folder)
    return [notes.read(number) for number in notes.numbers()[:NOTES_MAX]]


def add_note(store: Store, folder: str, note: VersionNote) -> int:
    """Add a note to the version in a folder, and return its number.

    Raises:
        UsageError: The text is empty or too long, or the version has `NOTES_MAX` notes.
    """
    notes = _notes(store, folder)
    if not 0 < len(note.text) <= TEXT_CHARS_MAX:
        message = f"a note has 1 to {TEXT_CHARS_MAX:,} characters; this one has {len(note.text):,}"
        raise UsageError(message, help="shorten it, and link to what is longer")
    while (number := 1 + max(notes.numbers(), default=0)) <= NOTES_MAX:
        try:
            notes.append(number, note)
        except FileTaken:
            continue
        return number
    message = f"the version has {NOTES_MAX} notes, the most that it may have"
    raise UsageError(message, help="its notes are in `streamlearn show`; keep more elsewhere")


def _notes(store: Store, folder: str) -> Sequence[VersionNote]:
    return Sequence(store, f"{folder}/notes", VersionNote, help=_HELP)
