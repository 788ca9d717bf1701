"""`streamlearn features`: folds interactions into the states of computed columns, shows them, and rebuilds them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.options import AppArgument, JsonOption, SetOption, one_of, stop_event
from streamlearn.cli.output.table import print_facts, print_json, print_table
from streamlearn.errors import FoldOver, UsageError
from streamlearn.pulse import PULSE
from streamlearn.times import parse_duration_ms, parse_time_ms, time_text

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder

__all__ = ["features"]

_SIDES = ("user", "item")
# How often metrics are set, and how long a fold that is stopped goes on.
_METERS_S, _LAST_S = 1.0, 5.0
features = typer.Typer(no_args_is_help=True, help="Computed features: fold, show, get, check and rebuild their states.")


@features.command()
def fold(app: AppArgument, set_: SetOption = None) -> None:
    """Fold APP's interactions into states until a signal arrives. `up` starts it where columns are computed."""
    from streamlearn.apps import load_app
    from streamlearn.metrics_server import serve_metrics
    from streamlearn.online import FoldLoop
    from streamlearn.online.meters import FoldMeters
    from streamlearn.telemetry import set_up_logging

    folder = load_app(app, set_ or ())
    folder.require_own_samples("features fold")
    set_up_logging(folder.settings.telemetry)
    stopped, meters = stop_event(), FoldMeters()
    with serve_metrics(folder.settings.telemetry), FoldLoop(folder) as loop:
        due_s = 0.0

        def beat() -> None:
            nonlocal due_s
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + _METERS_S
                meters.set(loop.counts, loop.behind)
            if PULSE.is_due:
                PULSE.beat()

        # Scripts wait for this line.
        print(f"folding the interactions of {folder.app.name}", flush=True)
        PULSE.ready()
        try:
            loop.run(stopped, beat)
            PULSE.stopping()
            # Ingest has ended: fold the last that it wrote, and leave a longer backlog to the next process.
            until_s = time.monotonic() + _LAST_S
            while loop.step(beat) and time.monotonic() < until_s:
                pass
        except FoldOver as error:
            # Not a failure: restarted, this process would take over from the newer one.
            typer.echo(f"ended: {error.message}", err=True)


@features.command()
def show(app: AppArgument, set_: SetOption = None, json: JsonOption = False) -> None:
    """Show the computed columns of APP, and how far interactions are folded."""
    from streamlearn.online import open_state_store
    from streamlearn.online.fold_progress import read_progress

    folder = _computed(app, set_ or ())
    with open_state_store(folder) as store:
        found, url = read_progress(folder, store), store.url
    rows = [
        {
            "of": one.entity.side,
            "columns": ", ".join(column.name for column in one.entity.columns),
            "definition": f"{one.entity.id:016x}",
            "epoch": None if one.group is None else one.group.epoch,
            "messages behind": one.behind,
            "newest interaction": time_text(one.newest_ms) if one.newest_ms else None,
        }
        for one in found
    ]
    if json:
        print_json({"store": url, "states": rows})
        return
    print_table(rows, f"states in {url}", whole=True)


@features.command()
def get(
    app: AppArgument,
    side: Annotated[str, typer.Argument(metavar="user|item", help="The entity.", callback=one_of(_SIDES))],
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Users or items.")],
    at: Annotated[str, typer.Option(metavar="TIME", help="Event time of the values, in UTC.", show_default="now")] = "",
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Show the computed columns of users or items of APP, as a request would get them."""
    from streamlearn.online import FeatureReader

    folder = _computed(app, set_ or ())
    spec = folder.app.features
    slot = spec.slot(spec.user_slot if side == "user" else spec.item_id)
    try:
        values: list[Any] = [int(one) if slot.value == "int" else one for one in ids]
    except ValueError:
        message = f"an id is not a whole number, as the values of slot {slot.name!r} are"
        raise UsageError(message, help="give the ids as events have them") from None
    now = datetime.now(UTC)
    at_ms = parse_time_ms(at, now) if at else round(now.timestamp() * 1_000)
    with FeatureReader(folder, wait_s=folder.settings.features.reach_s) as reader:
        found = reader.users(values, at_ms) if side == "user" else reader.items(values, at_ms)
    rows = [
        {"id": value, "state": outcome, **found.row(number)}
        for number, (value, outcome) in enumerate(zip(values, found.outcomes, strict=True))
    ]
    if json:
        print_json({"at_ms": at_ms, "rows": rows})
        return
    for row in rows:
        print_facts(f"{side} {row.pop('id')} at {time_text(at_ms)}", row)


@features.command()
def check(
    app: AppArgument,
    last: Annotated[str, typer.Option(metavar="TIME", help="Impressions of the last TIME, such as 30m.")] = "1h",
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Compute what APP's impressions were served with again, from their interactions; status 1 if any value differs."""
    from dataclasses import asdict

    from streamlearn.errors import EXIT_FAILED
    from streamlearn.online import check_served

    folder = _computed(app, set_ or ())
    result = asdict(check_served(folder, _newest_ms(folder) - parse_duration_ms(last)))
    if json:
        print_json(result)
    else:
        examples = result.pop("examples")
        print_facts("checked", result)
        for example in examples:
            typer.echo(example)
    if result["differences"]:
        raise typer.Exit(EXIT_FAILED)


@features.command()
def rebuild(
    app: AppArgument,
    without: Annotated[
        str, typer.Option(metavar="FROM..TO", help="Leave out interactions of these event times, in UTC.")
    ] = "",
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Fold all of APP's interactions into new states, and then read these. The old ones are read until then."""
    from dataclasses import asdict

    from streamlearn.online import rebuild_states

    folder = _computed(app, set_ or ())
    folder.require_own_samples("features rebuild")
    counts = rebuild_states(folder, _times(without), lambda line: typer.echo(line, err=True))
    print_json(asdict(counts)) if json else print_facts("rebuilt", asdict(counts))


def _newest_ms(folder: AppFolder) -> int:
    """Return the present in event time: that of the newest interaction, if it is not the clock's."""
    from streamlearn.online import open_state_store

    newest_ms = round(1_000 * time.time())
    if folder.settings.topics.time == "wall":
        return newest_ms
    with open_state_store(folder) as store:
        groups = [store.current(folder.app.samples_name, entity) for entity in folder.app.features.entities]
        found = [store.standing(group, number) for group in groups if group for number in range(group.partitions)]
    return max((standing.newest_ms for standing in found if standing), default=newest_ms)


def _times(given: str) -> tuple[int, int]:
    if not given:
        return (0, 0)
    first, dots, last = given.partition("..")
    now = datetime.now(UTC)
    begin_ms, end_ms = (parse_time_ms(text, now) for text in (first, last)) if dots else (0, 0)
    if begin_ms >= end_ms:
        message = f"--without {given!r} is not a stretch of time"
        raise UsageError(message, help="give FROM..TO, such as 2026-11-20T12:00..2026-11-20T12:30")
    return begin_ms, end_ms


def _computed(app: Any, changes: Any) -> AppFolder:
    from streamlearn.apps import load_app
    from streamlearn.online.fold_loop import computed_entities

    folder = load_app(app, changes)
    computed_entities(folder)
    return folder
