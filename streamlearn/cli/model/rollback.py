"""`streamlearn rollback`, `release`, `promote`: people move the pointer; the output has each node's time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from streamlearn.cli.model.model_options import (
    Model,
    ModelArgument,
    ReasonOption,
    WordsArgument,
    model_and_versions,
    open_model,
    who,
)
from streamlearn.cli.model.move_output import show_moved
from streamlearn.cli.model.place import Place, at_place
from streamlearn.cli.options import JsonOption
from streamlearn.cli.output.units import parse_time_ms
from streamlearn.errors import UsageError

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
    model: ModelArgument = None,
    to: Annotated[int | None, typer.Option("--to", metavar="VERSION", min=1, help="Roll back to this version.")] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", min=1, help="Roll back by this many good versions.")
    ] = None,
    before: Annotated[
        str | None,
        typer.Option("--before", metavar="TIME", help="Roll back to the newest good version written before this time."),
    ] = None,
    reason: ReasonOption = "",
    wait: _WaitOption = _WAIT_S,
    json: JsonOption = False,
) -> None:
    """Serve an older version at once, hold it and taint newer ones. Ends with status 3 unless all nodes follow."""
    from streamlearn.versions.pointer import moves

    if sum(one is not None for one in (to, steps, before)) != 1:
        message = "give exactly one of --to, --steps and --before"
        raise UsageError(message, help="for example --to VERSION, --steps N or --before TIME")
    found = open_model(model, place)
    before_ms = None if before is None else parse_time_ms(before, datetime.now(UTC))

    def decide(now: Pointer, there: Sequence[Known]) -> Pointer:
        if steps is not None:
            target = moves.steps_back(now, there, steps)
        else:
            target = moves.before(now, there, before_ms) if before_ms is not None else to or 0
        return moves.rollback(now, there, target)

    moved, known = found.move(decide, what="rollback", by=who(), reason=reason, wait_s=wait)
    active = moved.pointer.active
    assert active is not None
    tainted = moves.taints_of(moved.pointer, known)
    left = ", ".join(str(version) for version in tainted if version > active.version) or "none"
    said = f"{found.name} is rolled back to version {active.version} and held there; tainted: {_short(left)}"
    _show(found, moved, said, json=json)


@at_place
def release(
    place: Place,
    model: ModelArgument = None,
    reason: ReasonOption = "",
    wait: _WaitOption = _WAIT_S,
    json: JsonOption = False,
) -> None:
    """End a hold: serve the newest good version, and follow new ones again."""
    from streamlearn.versions.pointer import moves

    found = open_model(model, place)
    moved, _ = found.move(moves.release, what="release", by=who(), reason=reason, wait_s=wait)
    assert moved.pointer.active is not None
    _show(
        found, moved, f"{found.name} follows new versions again, from version {moved.pointer.active.version}", json=json
    )


@at_place
def promote(
    place: Place,
    words: WordsArgument,
    canary: Annotated[
        float | None,
        typer.Option("--canary", metavar="SHARE", help="Serve it for this share of the requests only, 0 to 1."),
    ] = None,
    shadow: Annotated[
        float | None,
        typer.Option(
            "--shadow",
            metavar="SHARE",
            help="Score this share of the requests with it as well, without using its answers.",
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
    model, (version,) = model_and_versions(words, 1)
    found = open_model(model, place)

    def decide(now: Pointer, there: Sequence[Known]) -> Pointer:
        return moves.promote(now, there, version, accept=accept, share=share, shadow=in_shadow)

    what = "promote" if share is None else "shadow" if in_shadow else "canary"
    moved, there = found.move(decide, what=what, by=who(), reason=reason, wait_s=wait)
    tainted = moves.taints_of(moved.pointer, there)
    clean = [str(one.version) for one in there if one.version > version and one.version not in tainted]
    _show(found, moved, _promoted(found, moved.pointer, version, clean if accept else []), json=json)


def _show(found: Model, moved: Moved, said: str, *, json: bool) -> None:
    if found.registry is None:
        typer.echo(
            "no registry was given: nodes are not waited for, and follow when they next read the store", err=True
        )
    show_moved(moved, said, json=json)


def _promoted(found: Model, pointer: Pointer, version: int, clean: list[str]) -> str:
    if pointer.canary is not None:
        does = "scores, in shadow," if pointer.canary.shadow else "answers"
        return f"{found.name}: version {version} {does} {pointer.canary.share:.1%} of the requests"
    held = "; the hold stays in place, see `streamlearn release`" if pointer.held else ""
    with_it = f"; no longer tainted: {_short(', '.join(clean))}" if clean else ""
    return f"{found.name} serves version {version}{with_it}{held}"


def _short(text: str) -> str:
    return text if len(text) < 60 else f"{text[:57]}..."
