"""`streamlearn verify` and `diff`: whether versions are what they were, and what is another between two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.model.model_options import (
    ModelArgument,
    WordsArgument,
    model_and_versions,
    open_model,
)
from streamlearn.cli.model.place import Place, at_place
from streamlearn.cli.options import JsonOption
from streamlearn.cli.output.progress import shown_progress
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.cli.output.units import bytes_text, counted
from streamlearn.errors import UsageError, VersionDefect

if TYPE_CHECKING:
    from streamlearn.cli.model.model_options import Model
    from streamlearn.versions.upkeep.difference import Diff
    from streamlearn.versions.upkeep.verification import Found, Verified

__all__ = ["diff", "verify"]


@at_place
def verify(
    place: Place,
    model: ModelArgument = None,
    version: Annotated[
        int | None,
        typer.Option(
            "--version",
            metavar="VERSION",
            min=1,
            help="Check only this version and the versions that it is built from.",
        ),
    ] = None,
    mend_pointer: Annotated[
        bool,
        typer.Option(
            "--mend-pointer",
            help="First replace a damaged record of the newest move by the registry's copy.",
        ),
    ] = False,
    finite: Annotated[
        bool, typer.Option("--finite", help="Also end with status 1 if a number of a version is NaN or infinite.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check the checksums of all files of all versions, or of one version's chain. Ends with 1 on any defect."""
    from streamlearn.versions import verify as read_all

    found = open_model(model, place)
    if mend_pointer:
        _mend_pointer(found)
    with shown_progress("verifying", is_bytes=True) as progress:
        seen = read_all(found.store, found.name, version, everything=version is None, progress=progress)
    wrong = [*seen.defects, *_records(found), *(_not_finite(seen) if finite else [])]
    defects = [{"path": one.path, "defect": one.defect, "said": one.message, "help": one.help} for one in wrong]
    if json:
        lost = [asdict(one) for one in seen.not_finite]
        counts = {"versions": list(seen.versions), "files": seen.files, "bytes": seen.bytes}
        print_json(counts | {"defects": defects, "not_finite": lost})
    else:
        files = f"{counted(len(seen.versions), 'version')}, {counted(seen.files, 'file')}"
        typer.echo(f"{files}, {bytes_text(seen.bytes)} read")
        shown = [{name: one[name] for name in ("path", "defect", "said")} for one in defects]
        print_table(shown, whole=True) if shown else typer.echo("ok: all files are intact")
        if seen.not_finite:
            lost = [asdict(one) | {"key": "-" if one.key is None else f"{one.key}"} for one in seen.not_finite]
            print_table(lost, "numbers that are NaN or infinite", whole=True)
    if defects:
        first = defects[0]
        count = counted(len(defects), "defect")
        message = f"{found.name!r} has {count}, the first in {first['path']} ({first['defect']})"
        help = wrong[0].help or "restore the file from a copy"
        raise VersionDefect(
            message,
            help=f"{help}; nodes keep the versions that they have",
            defect=first["defect"],
            path=first["path"],
        )


def _not_finite(seen: Verified) -> list[Found]:
    """Numbers that are NaN or infinite, as defects."""
    from streamlearn.versions.store.defect import defective
    from streamlearn.versions.upkeep.verification import Found

    return [Found.of(defective(one.path, "not_finite", one.said)) for one in seen.not_finite]


def _mend_pointer(found: Model) -> None:
    if found.registry is None:
        message = "--mend-pointer needs the registry, which has the newest move"
        raise UsageError(message, help="give it with --registry or STREAMLEARN_REGISTRY")
    copy = found.registry.pointer()
    if copy is None:
        message = f"the registry has no move of {found.name!r}"
        raise UsageError(message, help='see docs/operating/versions.md, "A damaged move", for the steps without a copy')
    found.log.mend(copy)
    typer.echo(
        f"move {copy.seq} was restored from the registry: {copy.by} moved the pointer to version {copy.active}",
        err=True,
    )


def _records(found: Model) -> list[Found]:
    """Defects of the pointer's moves and of requests to training."""
    from streamlearn.versions import Requests
    from streamlearn.versions.upkeep.verification import Found

    requests = Requests(found.store, found.name)
    reads: list[Callable[[], object]] = [
        *(partial(found.log.read, seq) for seq in found.log.seqs()),
        partial(requests.after, 0),
        requests.refusals,
    ]
    wrong = []
    for read in reads:
        try:
            read()
        except VersionDefect as error:
            wrong.append(Found.of(error))
    return wrong


@at_place
def diff(
    place: Place,
    words: WordsArgument,
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=0, max=1_000, help="Number of rows to list, largest moves first.")
    ] = 5,
    json: JsonOption = False,
) -> None:
    """Compare two versions, [MODEL] VERSION VERSION: changed rows, largest moves, dense weights and metrics."""
    from streamlearn.versions import diff as compare

    model, (before, after) = model_and_versions(words, 2)
    found = open_model(model, place)
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
        {"table": one.table, "key": f"{move.key}", "moved by": "NaN" if move.is_nan else f"{move.norm:.6g}"}
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
        if value is None:
            return "-"
        return "NaN" if one.is_nan and value == float("inf") else f"{value:.6g}"

    return {
        "tensor": one.name,
        "moved by": number(one.norm),
        "norm before": number(one.norm_before),
        "norm after": number(one.norm_after),
        "largest number": number(one.number_max),
    }
