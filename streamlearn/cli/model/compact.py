"""`streamlearn compact` and `gc`: write a base from files, and delete files that no version needs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.model.model_options import ModelArgument, open_model
from streamlearn.cli.options import JsonOption, Place, at_place
from streamlearn.cli.output.progress import shown_progress
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.cli.output.units import bytes_text, counted

if TYPE_CHECKING:
    from streamlearn.versions.upkeep.gc import GcPlan

__all__ = ["compact", "gc"]


@at_place
def compact(
    place: Place,
    name: ModelArgument = None,
    upto: Annotated[
        int | None,
        typer.Option("--version", metavar="VERSION", min=1, help="Version to compact; the newest by default."),
    ] = None,
    memory_mib: Annotated[
        int, typer.Option(metavar="MIB", min=1, help="Memory for rows. With less, it takes longer.")
    ] = 512,
    json: JsonOption = False,
) -> None:
    """Write a base of a version from files alone, so that nodes that start from it read no deltas."""
    from streamlearn.versions import compact as write_base
    from streamlearn.versions.store.settings import ScanSettings

    model = open_model(name, place)
    with shown_progress("compacting", is_bytes=False) as progress:
        base = write_base(
            model.store, model.name, upto, scan=ScanSettings(scan_bytes_max=memory_mib << 20), progress=progress
        )
    if json:
        print_json(
            {"version": base.ref.version, "folder": base.folder, "is_new": base.is_new, "rows": base.rows,
             "bytes": base.bytes, "wall_s": round(base.wall_s, 3)}
        )  # fmt: skip
    elif not base.is_new:
        typer.echo(f"version {base.ref.version} already has a base: {base.folder}")
    else:
        typer.echo(
            f"version {base.ref.version} has a base of {counted(base.rows, 'row')}, {bytes_text(base.bytes)}, "
            f"written in {base.wall_s:.1f} s: {base.folder}"
        )


@at_place
def gc(
    place: Place,
    name: ModelArgument = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete the files. Without it, they are only listed.")] = False,
    grace_s: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0, help="How long to wait for nodes that are starting; 15 minutes by default."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List files that no retained version needs; `--yes` deletes them."""
    from streamlearn.versions.upkeep.cleanup import clean_up, plan_cleanup

    model = open_model(name, place)
    plan = plan_cleanup(model)
    if json and not yes:
        print_json(_facts(plan))
        return
    if not json:
        _show(plan, yes)
    if not yes or not plan.removals:
        return
    wait_s = model.settings.retention.grace_s if grace_s is None else grace_s
    if wait_s > 0:
        typer.echo(f"waiting {wait_s:g} s for nodes that are starting; nothing is deleted before that", err=True)
    with shown_progress("removing", is_bytes=True) as progress:
        result = clean_up(model, plan, wait=lambda: time.sleep(wait_s), progress=progress)
    if json:
        print_json(
            _facts(plan) | {"removed_files": result.files, "removed_bytes": result.bytes, "spared": result.spared}
        )
    else:
        typer.echo(f"{counted(result.files, 'file')} removed, {bytes_text(result.bytes)}")


def _show(plan: GcPlan, yes: bool) -> None:
    rows = [
        {
            "folder": removal.folder,
            "why": str(removal.reason),
            "files": len(removal.files),
            "bytes": bytes_text(removal.bytes),
        }
        for removal in plan.removals
    ]
    if not rows:
        typer.echo("nothing to delete")
        return
    print_table(rows, whole=True)
    what = "to delete" if yes else "can be deleted; --yes deletes them"
    typer.echo(f"{bytes_text(plan.bytes)} in {counted(len(rows), 'folder')} {what}")


def _facts(plan: GcPlan) -> dict[str, Any]:
    goes = [
        {"folder": removal.folder, "reason": str(removal.reason), "files": len(removal.files), "bytes": removal.bytes}
        for removal in plan.removals
    ]
    return {"floor": plan.retained.floor, "bytes": plan.bytes, "goes": goes}
