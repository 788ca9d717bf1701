"""`streamlearn verify` and `diff`: whether versions are what they were, and what is another between two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.model import (
    AppOption,
    ModelArgument,
    RegistryOption,
    StoreOption,
    WordsArgument,
    model_and_versions,
    open_model,
)
from streamlearn.cli.options import JsonOption, SetOption
from streamlearn.cli.shown_progress import shown_progress
from streamlearn.cli.table import print_json, print_table
from streamlearn.cli.units import bytes_text
from streamlearn.errors import VersionDefect

if TYPE_CHECKING:
    from streamlearn.cli.model import Model
    from streamlearn.versions import Diff, Found

__all__ = ["diff", "verify"]


def verify(
    model: ModelArgument = None,
    version: Annotated[
        int | None,
        typer.Option("--version", metavar="VERSION", min=1, help="Only the chain of this version."),
    ] = None,
    app: AppOption = None,
    store: StoreOption = None,
    registry: RegistryOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Read all files of all versions, or of one's chain, and compare checksums; names all defects and ends with 1."""
    from streamlearn.versions import verify as read_all

    found = open_model(model, app, store=store, registry=registry, set_=set_)
    with shown_progress("verifying", is_bytes=True) as progress:
        seen = read_all(found.store, found.name, version, everything=version is None, progress=progress)
    defects = [{"path": one.path, "defect": one.defect, "said": one.message} for one in (*seen.defects, *_moves(found))]
    if json:
        print_json({"versions": list(seen.versions), "files": seen.files, "bytes": seen.bytes, "defects": defects})
    else:
        typer.echo(f"{len(seen.versions)} versions, {seen.files:,} files, {bytes_text(seen.bytes)} read")
        print_table(defects, whole=True) if defects else typer.echo("ok: everything is as it was written")
    if defects:
        first = defects[0]
        count = f"{len(defects)} defect{'s' if len(defects) > 1 else ''}"
        message = f"{found.name!r} has {count}, the first in {first['path']} ({first['defect']})"
        raise VersionDefect(
            message,
            help="restore the files from a copy; nodes stay at the versions they have",
            defect=first["defect"],
            path=first["path"],
        )


def _moves(found: Model) -> list[Found]:
    """What is wrong with the moves of the pointer."""
    from streamlearn.versions import Found

    wrong = []
    for seq in found.log.seqs():
        try:
            found.log.read(seq)
        except VersionDefect as error:
            wrong.append(Found(error.path, error.defect, error.message))
    return wrong


def diff(
    words: WordsArgument,
    top: Annotated[int, typer.Option("--top", metavar="N", min=0, max=1_000, help="Name the largest moves.")] = 5,
    app: AppOption = None,
    store: StoreOption = None,
    registry: RegistryOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Compare two versions, [MODEL] VERSION VERSION: rows that changed, the largest moves, dense weights, metrics."""
    from streamlearn.versions import diff as compare

    model, (before, after) = model_and_versions(words, 2)
    found = open_model(model, app, store=store, registry=registry, set_=set_)
    for version in (before, after):
        found.one(version)
    with shown_progress("comparing", is_bytes=False) as progress:
        seen = compare(found.store, found.name, before, after, top=top, progress=progress)
    if json:
        import msgspec

        print_json(msgspec.to_builtins(seen))
    else:
        _show(seen)


def _show(seen: Diff) -> None:
    print_table([_table(one) for one in seen.tables], f"rows, {seen.before.version} to {seen.after.version}")
    moves = [
        {"table": one.table, "key": f"{move.key}", "moved by": f"{move.norm:.6g}"}
        for one in seen.tables
        for move in one.largest
    ]
    if moves:
        print_table(moves, "largest moves")
    if seen.dense:
        print_table([_dense(one) for one in seen.dense], "dense weights")
    if seen.metrics:
        rows = [{"metric": name, "before": one, "after": two} for name, (one, two) in sorted(seen.metrics.items())]
        print_table(rows, "metrics")


def _table(one: Any) -> dict[str, Any]:
    return {
        "table": one.table,
        "rows before": one.keys[0],
        "rows after": one.keys[1],
        "created": one.created,
        "gone": one.gone,
        "changed": one.changed,
        "touched": one.touched,
        "moved by": f"{one.norm:.6g}",
    }


def _dense(one: Any) -> dict[str, Any]:
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.6g}"

    return {
        "tensor": one.name,
        "moved by": number(one.norm),
        "norm before": number(one.norm_before),
        "norm after": number(one.norm_after),
        "largest number": number(one.number_max),
    }
