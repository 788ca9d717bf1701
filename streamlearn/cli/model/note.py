"""`streamlearn note`: a note on a version, for others to read."""

from __future__ import annotations

from typing import Annotated

import typer

from streamlearn.cli.model.model_options import author, model_and_versions, open_model
from streamlearn.cli.options import JsonOption, Place, at_place
from streamlearn.cli.output.table import print_json
from streamlearn.clock import SYSTEM_CLOCK

__all__ = ["note"]

_NoteWords = Annotated[
    list[str],
    typer.Argument(
        metavar="[MODEL] VERSION TEXT",
        help="The model or its folder (not needed with --app), the number of a version, and the note.",
    ),
]


@at_place
def note(place: Place, words: _NoteWords, json: JsonOption = False) -> None:
    """Add a note to a version. `show` and the console show it, and it is removed with the version."""
    from streamlearn.versions.format.version_note import VersionNote, add_note

    name, (version,) = model_and_versions(words[:-1], 1)
    model = open_model(name, place)
    folder = model.history.folder(model.one(version).ref)
    entry = VersionNote(text=words[-1], by=author(), wall_ms=SYSTEM_CLOCK.wall_ms())
    number = add_note(model.store, folder, entry)
    if json:
        print_json({"version": version, "number": number, "text": entry.text, "by": entry.by})
    else:
        typer.echo(f"note {number} on version {version} of {model.name}")
