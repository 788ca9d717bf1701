"""`streamlearn verify` and `diff`: checks the files of versions, and compares two versions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.model.model_options import ModelArgument, WordsArgument, model_and_versions, open_model
from streamlearn.cli.options import JsonOption, Place, at_place
from streamlearn.cli.output.progress import shown_progress
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.cli.output.units import bytes_text, counted
from streamlearn.errors import UsageError, VersionDefect

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder
    from streamlearn.cli.model.model_options import Model
    from streamlearn.trainer.towers.derived_vectors import DerivedVectors
    from streamlearn.versions.upkeep.difference import Diff

__all__ = ["diff", "verify"]


@at_place
def verify(
    place: Place,
    name: ModelArgument = None,
    version: Annotated[
        int | None,
        typer.Option(metavar="VERSION", min=1, help="Check only this version and the versions that it is built from."),
    ] = None,
    mend_pointer: Annotated[
        bool,
        typer.Option(
            "--mend-pointer", help="First repeat the newest move from the registry's copy, if its record is damaged."
        ),
    ] = False,
    finite: Annotated[
        bool, typer.Option("--finite", help="Also end with status 1 if a number of a version is NaN or infinite.")
    ] = False,
    derived: Annotated[
        bool,
        typer.Option(
            "--derived",
            help="Make the vectors of all items of the newest version, or of VERSION, once more, and compare them. "
            "Needs the application's folder.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check the checksums of all files of all versions, or of one version's chain. Ends with 1 on any defect."""
    from streamlearn.versions import verify as read_files
    from streamlearn.versions.store.defect import defective

    model = open_model(name, place)
    folder = _folder(name, place) if derived else None
    if mend_pointer:
        _mend_pointer(model)
    with shown_progress("verifying", is_bytes=True) as progress:
        result = read_files(model.store, model.name, version, everything=version is None, progress=progress)
    wrong = [*result.defects, *_record_defects(model)]
    if finite:
        wrong += [defective(number.path, "not_finite", number.said) for number in result.not_finite]
    vectors = None if folder is None else _derived(folder, model, version, wrong)
    defects = [{"path": bad.path, "defect": bad.defect, "said": bad.message, "help": bad.help} for bad in wrong]
    if json:
        counts = {"versions": list(result.versions), "files": result.files, "bytes": result.bytes}
        found = {"defects": defects, "not_finite": [asdict(number) for number in result.not_finite]}
        derived_counts = (
            {}
            if vectors is None
            else {"derived": {"version": vectors.version, "vectors": vectors.made, "rounded": vectors.rounded}}
        )
        print_json(counts | derived_counts | found)
    else:
        files = f"{counted(len(result.versions), 'version')}, {counted(result.files, 'file')}"
        typer.echo(f"{files}, {bytes_text(result.bytes)} read")
        if vectors is not None:
            rounded = f", {vectors.rounded} of them with another rounding" if vectors.rounded else ""
            typer.echo(f"version {vectors.version}: {counted(vectors.made, 'vector')} made once more{rounded}")
        rows = [{column: row[column] for column in ("path", "defect", "said")} for row in defects]
        print_table(rows, whole=True) if rows else typer.echo("ok: all files are intact")
        if result.not_finite:
            rows = [asdict(bad) | {"key": "-" if bad.key is None else f"{bad.key}"} for bad in result.not_finite]
            print_table(rows, "numbers that are NaN or infinite", whole=True)
    if defects:
        first = wrong[0]
        count = counted(len(defects), "defect")
        message = f"{model.name!r} has {count}, the first in {first.path} ({first.defect})"
        help = f"{first.help or 'restore the file from a copy'}; nodes keep the versions that they have"
        raise VersionDefect(message, help=help, defect=first.defect, path=first.path)


def _folder(name: str | None, place: Place) -> AppFolder:
    """Return the application, whose towers make vectors."""
    from streamlearn.apps import load_app

    path = place.app or (None if name is None else Path(name))
    if path is None or not (path / "app.py").is_file():
        message = "--derived needs the folder of the application, whose towers make the vectors"
        raise UsageError(message, help="give it as MODEL or with --app")
    return load_app(path, place.set_ or ())


def _derived(folder: AppFolder, model: Model, version: int | None, wrong: list[VersionDefect]) -> DerivedVectors | None:
    """Make vectors once more, and add what is wrong to `wrong`; None if the version cannot be read."""
    from streamlearn.models.tensorflow_load import load_tensorflow
    from streamlearn.versions import Chain

    load_tensorflow()
    from streamlearn.trainer.towers.derived_vectors import derived_vectors

    try:
        vectors = derived_vectors(folder, Chain.find(model.store, model.name, version))
    except VersionDefect as error:
        wrong += [] if error.message in {bad.message for bad in wrong} else [error]
        return None
    wrong += vectors.defects
    return vectors


def _mend_pointer(model: Model) -> None:
    from streamlearn.versions.pointer.announcer import Announcer

    if model.registry is None:
        message = "--mend-pointer needs the registry, which has the newest move"
        raise UsageError(message, help="give it with --registry or STREAMLEARN_REGISTRY")
    copy = model.registry.pointer()
    if copy is None:
        message = f"the registry has no move of {model.name!r}"
        raise UsageError(message, help='see "Versions in the store" in the documentation for the steps without a copy')
    mended = model.log.mend(copy)
    is_announced = Announcer(model.store, model.registry).moved(mended, "mend")
    typer.echo(
        f"move {mended.seq} repeats move {mended.seq - 1} from the registry: {copy.by} moved the pointer to version "
        f"{copy.active}{'' if is_announced else '; the registry does not have it yet, nodes read it from the store'}",
        err=True,
    )


def _record_defects(model: Model) -> list[VersionDefect]:
    """Return defects of the pointer's newest move and of requests to training; an older move has no effect."""
    from streamlearn.versions import Requests
    from streamlearn.versions.pointer.deletion import Deletions

    requests, seqs = Requests(model.store, model.name), model.log.seqs()
    for seq in seqs[:-1]:
        if model.log.is_damaged(seq):
            typer.echo(
                f"note: the record of move {seq} is damaged; it has no effect, because it is not the newest", err=True
            )
    reads: list[Callable[[], object]] = [
        *(partial(model.log.read, seq) for seq in seqs[-1:]),
        partial(requests.after, 0),
        requests.refusals,
        Deletions(model.store, model.name).all,
    ]
    wrong = []
    for read in reads:
        try:
            read()
        except VersionDefect as error:
            wrong.append(error)
    return wrong


@at_place
def diff(
    place: Place,
    words: WordsArgument,
    top: Annotated[
        int, typer.Option(metavar="N", min=0, max=1_000, help="Number of rows to list, largest moves first.")
    ] = 5,
    json: JsonOption = False,
) -> None:
    """Compare two versions, [MODEL] VERSION VERSION: changed rows, largest moves, dense weights and metrics."""
    from streamlearn.versions import diff as compare

    name, (before, after) = model_and_versions(words, 2)
    model = open_model(name, place)
    for version in (before, after):
        model.one(version)
    with shown_progress("comparing", is_bytes=False) as progress:
        result = compare(model.store, model.name, before, after, top=top, progress=progress)
    if json:
        import msgspec

        print_json(msgspec.to_builtins(result))
    else:
        _show(result)


def _show(result: Diff) -> None:
    print_table([_table(table) for table in result.tables], f"rows, {result.before.version} to {result.after.version}")
    moves = [
        {"table": table.table, "key": f"{move.key}", "moved by": "NaN" if move.is_nan else f"{move.norm:.6g}"}
        for table in result.tables
        for move in table.largest
    ]
    if moves:
        print_table(moves, "largest moves")
    if result.dense:
        print_table([_tensor(tensor) for tensor in result.dense], "dense weights")
    if result.metrics:
        rows = [{"metric": name, "before": old, "after": new} for name, (old, new) in sorted(result.metrics.items())]
        print_table(rows, "metrics")


def _table(table: Any) -> dict[str, Any]:
    return {
        "table": table.table,
        "rows before": table.keys[0],
        "rows after": table.keys[1],
        "created": table.created,
        "gone": table.gone,
        "changed": table.changed,
        "touched": table.touched,
        "moved by": f"{table.norm:.6g}",
    }


def _tensor(tensor: Any) -> dict[str, Any]:
    def number(value: float | None) -> str:
        if value is None:
            return "-"
        return "NaN" if tensor.is_nan and value == float("inf") else f"{value:.6g}"

    return {
        "tensor": tensor.name,
        "moved by": number(tensor.norm),
        "norm before": number(tensor.norm_before),
        "norm after": number(tensor.norm_after),
        "largest number": number(tensor.number_max),
    }
