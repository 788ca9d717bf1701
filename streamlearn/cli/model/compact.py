"""`streamlearn compact` and `gc`: bases written from files, and files that no version needs taken away."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.model.model_options import Model, ModelArgument, open_model
from streamlearn.cli.model.place import Place, at_place
from streamlearn.cli.options import JsonOption
from streamlearn.cli.output.progress import shown_progress
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.cli.output.units import bytes_text, counted
from streamlearn.errors import RegistryUnreachable, UsageError

if TYPE_CHECKING:
    from streamlearn.versions.upkeep.gc import GcPlan

__all__ = ["compact", "gc"]


@at_place
def compact(
    place: Place,
    model: ModelArgument = None,
    upto: Annotated[
        int | None,
        typer.Option("--version", metavar="VERSION", min=1, help="Version to compact; the newest by default."),
    ] = None,
    memory_mib: Annotated[
        int, typer.Option("--memory-mib", metavar="MIB", min=1, help="Memory for rows. With less, it takes longer.")
    ] = 512,
    json: JsonOption = False,
) -> None:
    """Write a base of a version from files alone, so that nodes that start from it read no deltas."""
    from streamlearn.versions import compact as write_base
    from streamlearn.versions.store.settings import ScanSettings

    found = open_model(model, place)
    with shown_progress("compacting", is_bytes=False) as progress:
        done = write_base(
            found.store,
            found.name,
            upto,
            scan=ScanSettings(scan_bytes_max=memory_mib << 20),
            progress=progress,
        )
    if json:
        print_json(
            {"version": done.ref.version, "folder": done.folder, "is_new": done.is_new, "rows": done.rows,
             "bytes": done.bytes, "wall_s": round(done.wall_s, 3)}
        )  # fmt: skip
    elif not done.is_new:
        typer.echo(f"version {done.ref.version} already has a base: {done.folder}")
    else:
        typer.echo(
            f"version {done.ref.version} has a base of {counted(done.rows, 'row')}, {bytes_text(done.bytes)}, "
            f"written in {done.wall_s:.1f} s: {done.folder}"
        )


@at_place
def gc(
    place: Place,
    model: ModelArgument = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete the files. Without it, they are only listed.")] = False,
    grace_s: Annotated[
        float | None,
        typer.Option(
            "--grace-s",
            metavar="SECONDS",
            min=0,
            help="How long to wait for nodes that are starting; 15 minutes by default.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List files that no retained version needs; `--yes` deletes them."""
    from streamlearn.versions import plan_gc

    found = open_model(model, place)
    rules = found.settings.retention
    plan = plan_gc(found.store, found.name, _needed(found), settings=rules)
    if json and not yes:
        print_json(_facts(plan))
        return
    if not json:
        _show(plan, yes)
    if not yes or not plan.removals:
        return
    swept = _swept(found, plan, rules.grace_s if grace_s is None else grace_s)
    found.log.forget(max(1, found.pointer.seq - rules.pointer_moves_min))
    if json:
        print_json(_facts(plan) | {"removed_files": swept.files, "removed_bytes": swept.bytes, "spared": swept.spared})
    else:
        typer.echo(f"{counted(swept.files, 'file')} removed, {bytes_text(swept.bytes)}")


def _needed(found: Model) -> set[int]:
    """Versions that must stay readable whatever their age.

    They are what the pointer names, what nodes answer with, and what training was asked to go back to.

    Raises:
        UsageError: No registry was named, or it does not answer, so the versions that nodes need are unknown.
    """
    from streamlearn.versions import Requests

    needed = {ref.version for ref in found.pointer.needed.values()}
    needed |= {one.to.version for one in Requests(found.store, found.name).waiting(found.known())}
    if found.registry is None:
        if not found.is_alone:
            message = "cannot tell which versions nodes need: no registry was given"
            raise UsageError(message, help="give --registry URL; or --registry none if you have no nodes")
        return needed
    try:
        nodes = found.registry.nodes()
    except RegistryUnreachable as error:
        message = f"cannot tell which versions nodes need: {error.message}"
        raise UsageError(
            message, help="bring the registry back; or give --registry none if you have no nodes"
        ) from None
    return needed | {one.active for one in nodes if one.active}


def _swept(found: Model, plan: GcPlan, grace_s: float) -> Any:
    from streamlearn.versions import sweep
    from streamlearn.versions.pointer import moves

    known = found.known()
    # What the pointer stands at, and why, is another one's doing.
    stood = found.pointer

    def raise_floor(floor: int) -> None:
        found.mover.move(
            lambda now: moves.raise_floor(now, known, max(floor, now.floor)),
            by=stood.by,
            what="gc",
            reason=stood.reason,
        )
        if found.registry is not None:
            found.registry.drop_versions([one.version for one in known if one.version < floor])

    if plan.removals and grace_s > 0:
        typer.echo(f"waiting {grace_s:g} s for nodes that are starting; nothing is deleted before that", err=True)
    with shown_progress("removing", is_bytes=True) as progress:
        return sweep(found.store, plan, raise_floor=raise_floor, wait=lambda: time.sleep(grace_s), progress=progress)


def _show(plan: GcPlan, yes: bool) -> None:
    rows = [
        {"folder": one.folder, "why": str(one.reason), "files": len(one.files), "bytes": bytes_text(one.bytes)}
        for one in plan.removals
    ]
    if not rows:
        typer.echo("nothing to delete")
        return
    print_table(rows, whole=True)
    what = "to delete" if yes else "can be deleted; --yes deletes them"
    typer.echo(f"{bytes_text(plan.bytes)} in {counted(len(rows), 'folder')} {what}")


def _facts(plan: GcPlan) -> dict[str, Any]:
    return {
        "floor": plan.retained.floor,
        "bytes": plan.bytes,
        "goes": [
            {"folder": one.folder, "reason": str(one.reason), "files": len(one.files), "bytes": one.bytes}
            for one in plan.removals
        ],
    }
