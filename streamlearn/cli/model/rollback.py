"""`streamlearn rollback`, `release` and `promote`: moves of the pointer, with the time that each node took."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.model.model_options import (
    Model,
    ModelArgument,
    ReasonOption,
    WordsArgument,
    author,
    complete_version,
    model_and_versions,
    open_model,
)  # fmt: skip
from streamlearn.cli.options import JsonOption, Place, at_place
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.cli.output.units import counted, runs_text
from streamlearn.errors import PartlyDone, UsageError
from streamlearn.times import parse_time_ms

if TYPE_CHECKING:
    from streamlearn.versions import Known, Pointer
    from streamlearn.versions.pointer.mover import Moved

__all__ = ["promote", "release", "rollback"]

_WaitOption = Annotated[
    float,
    typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait for nodes to follow; 0 does not wait."),
]
_WAIT_S = 10.0


@at_place
def rollback(
    place: Place,
    name: ModelArgument = None,
    to: Annotated[
        int | None,
        typer.Option(metavar="VERSION", min=1, help="Roll back to this version.", autocompletion=complete_version),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Roll back by this many clean versions.")
    ] = None,
    before: Annotated[
        str | None, typer.Option(metavar="TIME", help="Roll back to the newest clean version written before this time.")
    ] = None,
    reason: ReasonOption = "",
    wait: _WaitOption = _WAIT_S,
    json: JsonOption = False,
) -> None:
    """Serve an older version at once, hold it and taint newer ones. Ends with status 3 unless all nodes follow."""
    from streamlearn.versions.pointer import moves

    if sum(option is not None for option in (to, steps, before)) != 1:
        message = "give exactly one of --to, --steps and --before"
        raise UsageError(message, help="for example --to VERSION, --steps N or --before TIME")
    model = open_model(name, place)
    before_ms = None if before is None else parse_time_ms(before, datetime.now(UTC))

    def decide(now: Pointer, known: Sequence[Known]) -> Pointer:
        if steps is not None:
            target = moves.steps_back(now, known, steps)
        else:
            target = moves.before(now, known, before_ms) if before_ms is not None else to or 0
        return moves.rollback(now, known, target)

    moved, known = model.move(decide, what="rollback", by=author(), reason=reason, wait_s=wait)
    active = moved.pointer.active
    assert active is not None
    tainted = moves.taints_of(moved.pointer, known)
    newer = runs_text([version for version in tainted if version > active.version]) or "none"
    line = f"{model.name} is rolled back to version {active.version} and held there; tainted: {newer}"
    if any(entry.is_untrained for entry in known if entry.version == active.version):
        line += "; this version has learned nothing"
    _show(model, moved, known, line, json=json)


@at_place
def release(
    place: Place,
    name: ModelArgument = None,
    reason: ReasonOption = "",
    wait: _WaitOption = _WAIT_S,
    json: JsonOption = False,
) -> None:
    """End a hold: serve the newest clean version, and follow new ones again."""
    from streamlearn.versions.pointer import moves

    model = open_model(name, place)
    moved, known = model.move(moves.release, what="release", by=author(), reason=reason, wait_s=wait)
    assert moved.pointer.active is not None
    line = f"{model.name} follows new versions again, from version {moved.pointer.active.version}"
    _show(model, moved, known, line, json=json)


@at_place
def promote(
    place: Place,
    words: WordsArgument,
    canary: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Serve it for this share of the requests only, 0 to 1.")
    ] = None,
    shadow: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Score this share of the requests with it as well, without using its answers."
        ),
    ] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Promote even if the version is tainted or was rejected.")
    ] = False,
    reason: ReasonOption = "",
    wait: _WaitOption = _WAIT_S,
    json: JsonOption = False,
) -> None:
    """Serve a version of your choice. A hold stays in place."""
    from streamlearn.versions.pointer import moves

    if canary is not None and shadow is not None:
        message = "--canary cannot be combined with --shadow: only one version can be tried at a time"
        raise UsageError(message, help="give one of them")
    share, in_shadow = canary if shadow is None else shadow, shadow is not None
    name, (version,) = model_and_versions(words, 1)
    model = open_model(name, place)

    def decide(now: Pointer, known: Sequence[Known]) -> Pointer:
        return moves.promote(now, known, version, accept=accept, share=share, shadow=in_shadow)

    what = "promote" if share is None else "shadow" if in_shadow else "canary"
    moved, known = model.move(decide, what=what, by=author(), reason=reason, wait_s=wait)
    tainted = moves.taints_of(moved.pointer, known)
    clean = [entry.version for entry in known if entry.version > version and entry.version not in tainted]
    _show(model, moved, known, _promoted_line(model, moved.pointer, version, clean if accept else []), json=json)


def _show(model: Model, moved: Moved, known: Sequence[Known], line: str, *, json: bool) -> None:
    if model.registry is None:
        typer.echo(
            "no registry was given: nodes are not waited for, and follow when they next read the store", err=True
        )
    _warn_of_deletions(model, moved.pointer.active_version, known)
    _show_moved(moved, line, json=json)


def _show_moved(moved: Moved, line: str, *, json: bool) -> None:
    """Print the result of a move; `line` states it for people.

    Raises:
        PartlyDone: A node did not confirm the move, or the registry could not be reached.
    """
    if json:
        from streamlearn.versions.pointer.facts import moved_facts

        print_json(moved_facts(moved))
    else:
        typer.echo(f"{line} (move {moved.pointer.seq}, in the store after {moved.store_ms:.1f} ms)")
        rows = [_row(ack.node, "acted", ack.ms, ack.version) for ack in moved.acted]
        rows += [_row(node.name, "silent", None, node.active) for node in moved.silent]
        rows += [_row(node.name, "starting", None, 0) for node in moved.starting]
        if rows:
            print_table(rows)
    if moved.said:
        message = f"the pointer moved, but nodes could not be asked whether they follow: {moved.said}"
        help = "nodes also read the store; see `streamlearn versions`; `--wait 0` does not wait for them"
        raise PartlyDone(message, help=help)
    if moved.silent:
        names = ", ".join(node.name for node in moved.silent)
        nodes = counted(len(moved.silent) + len(moved.acted), "node")
        message = f"{len(moved.silent)} of {nodes} did not confirm in time: {names}"
        raise PartlyDone(message, help="see their state in `streamlearn versions`; they follow when they are back")


def _row(node: str, state: str, ms: float | None, version: int) -> dict[str, Any]:
    return {"node": node, "state": state, "ms": None if ms is None else round(ms, 1), "serves": version or "-"}


def _warn_of_deletions(model: Model, version: int, known: Sequence[Known]) -> None:
    """Say that a version is older than a deletion: nodes use the deleted rows again."""
    from streamlearn.versions.pointer.deletion import Deletions, obeyed_by

    obeyed = max((obeyed_by(entry) for entry in known if entry.version == version), default=0)
    if count := sum(deletion.seq > obeyed for deletion in Deletions(model.store, model.name).all()):
        said = f"version {version} still has rows that {counted(count, 'deletion')} took out of later versions"
        typer.echo(f"{said}: release the pointer soon, see `streamlearn forget --help`", err=True)


def _promoted_line(model: Model, pointer: Pointer, version: int, clean: list[int]) -> str:
    if pointer.canary is not None:
        verb = "scores, in shadow," if pointer.canary.shadow else "answers"
        return f"{model.name}: version {version} {verb} {pointer.canary.share:.1%} of the requests"
    hold = "; the hold stays until it is released" if pointer.held else ""
    accepted = f"; no longer tainted: {runs_text(clean)}" if clean else ""
    return f"{model.name} serves version {version}{accepted}{hold}"
