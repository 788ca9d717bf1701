"""`streamlearn export` and `import`: a version as a plain folder for other programs, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from streamlearn.cli.model.model_options import author, model_and_versions, open_model
from streamlearn.cli.options import JsonOption, Place, at_place
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
def export(place: Place, words: _ExportWords, json: JsonOption = False) -> None:
    """Export a version as a folder: tables as Arrow files, dense weights, and the graph as a SavedModel."""
    from streamlearn.versions import export_version

    *first, path = words
    name, (version,) = model_and_versions(first, 1)
    folder = Path(path)
    model = open_model(name, place)
    model.one(version)
    with shown_progress("exporting", is_bytes=False) as progress:
        done = export_version(model.store, model.name, version, folder, progress=progress)
    facts: dict[str, Any] = {"model": model.name, "version": done.version, "folder": str(folder), "rows": done.rows}
    if json:
        print_json(facts)
    else:
        typer.echo(f"version {done.version} of {model.name} is in {folder}: {counted(sum(done.rows.values()), 'row')}")


@at_place
def import_(place: Place, words: _ImportWords, json: JsonOption = False) -> None:
    """Import a folder that `export` wrote as the first version of a model, in a store without versions of it."""
    from streamlearn.versions import import_version
    from streamlearn.versions.pointer.fence import Fence

    *first, path = words
    name, _ = model_and_versions(first, 0)
    folder = Path(path)
    model = open_model(name, place)
    done = import_version(model.store, model.name, folder, run=lambda: Fence(model.store, model.name).take(author()))
    facts = {"model": model.name, "version": done.manifest.version, "folder": done.folder}
    print_json(facts) if json else typer.echo(f"{folder} is version {done.manifest.version} of {model.name}")
