"""`streamlearn export` and `import`: a version as a plain folder that others can read, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from streamlearn.cli.model.model_options import (
    model_and_versions,
    open_model,
    who,
)
from streamlearn.cli.model.place import Place, at_place
from streamlearn.cli.options import JsonOption
from streamlearn.cli.output.progress import shown_progress
from streamlearn.cli.output.table import print_json
from streamlearn.cli.output.units import counted

__all__ = ["export", "import_"]

_ExportWords = Annotated[
    list[str],
    typer.Argument(
        metavar="[MODEL] VERSION PATH", help="The model (not needed with --app), the version, and the folder."
    ),
]
_ImportWords = Annotated[
    list[str], typer.Argument(metavar="[MODEL] PATH", help="The model (not needed with --app), and the folder.")
]


@at_place
def export(
    place: Place,
    words: _ExportWords,
    json: JsonOption = False,
) -> None:
    """Export a version as a folder: tables as Arrow files, dense weights, and the graph as a SavedModel."""
    from streamlearn.versions import export_version

    *named, last = words
    model, (version,) = model_and_versions(named, 1)
    folder = Path(last)
    found = open_model(model, place)
    found.one(version)
    with shown_progress("exporting", is_bytes=False) as progress:
        done = export_version(found.store, found.name, version, folder, progress=progress)
    facts: dict[str, Any] = {"model": found.name, "version": done.version, "folder": str(folder), "rows": done.rows}
    if json:
        print_json(facts)
    else:
        typer.echo(f"version {done.version} of {found.name} is in {folder}: {counted(sum(done.rows.values()), 'row')}")


@at_place
def import_(
    place: Place,
    words: _ImportWords,
    json: JsonOption = False,
) -> None:
    """Import a folder that `export` wrote as the first version of a model, in a store without versions of it."""
    from streamlearn.versions import import_version
    from streamlearn.versions.pointer.fence import Fence

    *named, last = words
    model, _ = model_and_versions(named, 0)
    folder = Path(last)
    found = open_model(model, place)
    done = import_version(found.store, found.name, folder, run=lambda: Fence(found.store, found.name).take(who()))
    facts = {"model": found.name, "version": done.manifest.version, "folder": done.folder}
    print_json(facts) if json else typer.echo(f"{folder} is version {done.manifest.version} of {found.name}")
