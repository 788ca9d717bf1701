"""`streamlearn evaluate`: train an application's model from scratch on a range of its samples, several times over."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.events.replay_progress import LINE_S
from streamlearn.cli.options import AppArgument, JsonOption, SetOption
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.cli.output.units import parse_time_ms, time_text
from streamlearn.errors import EXIT_PARTLY

if TYPE_CHECKING:
    from streamlearn.trainer.evaluation import Evaluated, Pass
    from streamlearn.trainer.learning_loop import Tally

__all__ = ["evaluate"]

_SCORES = ("rows", "positives", "auc", "log_loss", "normalised_entropy", "calibration")


def evaluate(
    app: AppArgument,
    passes: Annotated[int, typer.Option(metavar="N", min=1, help="Number of passes over the samples.")] = 1,
    hold_out: Annotated[
        float | None,
        typer.Option(
            "--hold-out",
            metavar="SHARE",
            help="Share of the samples, the last by event time, that is held out and scored; 0 for none.",
            show_default="0.1",
        ),
    ] = None,
    test_from: Annotated[
        str, typer.Option("--test-from", metavar="TIME", help="Hold out samples shown from this event time on; UTC.")
    ] = "",
    begin: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Learn samples shown from this event time on.")
    ] = "",
    end: Annotated[
        str, typer.Option("--to", metavar="TIME", help="Ignore samples shown from this event time on.")
    ] = "",
    until_offset: Annotated[
        str,
        typer.Option(
            "--until-offset",
            metavar="OFFSETS",
            help="Stop reading here: `end` (the present end of the samples) or PARTITION:OFFSET,...",
        ),
    ] = "end",
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Train APP's model from scratch and score held-out samples after each pass. Touches no version."""
    from streamlearn.apps import load_app
    from streamlearn.models.tensorflow_load import load_tensorflow
    from streamlearn.replay import stop_on_signals
    from streamlearn.telemetry import set_up_logging
    from streamlearn.trainer.intake.split import Asked

    folder = load_app(app, tuple(set_ or ()))
    set_up_logging(folder.settings.telemetry)
    now = datetime.now(UTC)
    begin_ms, test_ms, end_ms = (parse_time_ms(one, now) if one else None for one in (begin, test_from, end))
    asked = Asked(begin_ms=begin_ms, end_ms=end_ms, test_ms=test_ms, hold_out=hold_out)
    load_tensorflow()  # it speaks meanwhile
    from streamlearn.trainer import evaluate as evaluate_model

    with stop_on_signals() as stop:
        found = evaluate_model(
            folder, asked, stop, passes=passes, until_offset=until_offset, told=_tell, show=_shown(passes)
        )
    _print(found, json=json)
    if len(found.passes) < passes:
        typer.echo(f"stopped after {len(found.passes)} of {passes} passes", err=True)
        raise typer.Exit(EXIT_PARTLY)


def _tell(made: Pass) -> None:
    """A line on stderr for each pass, for those who wait."""
    aucs = (f"{one.label} AUC {one.auc:.4f}" for one in made.held_out.scores if not one.segment and one.auc is not None)
    print("  ".join([f"pass {made.number} is done", f"loss {made.loss:.4f}", *aucs]), file=sys.stderr, flush=True)


def _shown(passes: int) -> Callable[[int, Tally], None]:
    """A line on stderr every few seconds."""
    shown_s = time.monotonic()

    def show(number: int, tally: Tally) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s >= LINE_S:
            shown_s = time.monotonic()
            loss = tally.loss / max(tally.rows, 1)
            print(f"pass {number} of {passes}  {tally.rows:,} samples  loss {loss:.4f}", file=sys.stderr, flush=True)

    return show


def _print(found: Evaluated, *, json: bool) -> None:
    split = found.split
    times = {"from": split.begin_ms, "test_from": split.test_ms, "to": split.end_ms, "complete": split.complete_ms}
    if json:
        told = {f"{name}_ms": one for name, one in times.items()}
        print_json(told | {"passes": [_facts(one) for one in found.passes]})
        return
    shown = [{"samples": name, "": None if one is None else time_text(one)} for name, one in times.items()]
    print_table(shown)
    print_table([line for one in found.passes for line in _lines(one)], whole=True)


def _facts(one: Pass) -> dict[str, Any]:
    """A pass with all of its scores."""
    tally, held_out = one.tally, one.held_out
    return {
        "pass": one.number,
        "seconds": round(one.seconds, 2),
        "steps": tally.steps,
        "rows": tally.rows,
        "loss": one.loss,
        **{f"rows_{name}": count for name, count in tally.counts.items()},
        "rows_refused": tally.refused_rows,
        "rows_open": held_out.open_rows,
        "held_out": [
            {"label": score.label, "segment": score.segment, "text": score.text}
            | {name: getattr(score, name) for name in (*_SCORES, "kept", "is_complete")}
            for score in held_out.scores
        ],
    }


def _lines(one: Pass) -> Iterator[dict[str, Any]]:
    """A line for each label, of all its rows; one without scores where nothing was held out."""
    learned = {"pass": one.number, "seconds": round(one.seconds, 1), "learned": one.tally.rows}
    learned["loss"] = round(one.loss, 4)
    whole = [score for score in one.held_out.scores if not score.segment]
    for score in whole:
        numbers = {name: getattr(score, name) for name in _SCORES}
        numbers = {name: round(value, 4) if isinstance(value, float) else value for name, value in numbers.items()}
        yield learned | {"held out": score.label} | numbers
    if not whole:
        yield learned
