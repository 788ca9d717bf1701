"""`streamlearn evaluate`: trains an application's model from scratch on a range of its samples, in several passes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.options import AppArgument, JsonOption, SetOption
from streamlearn.cli.output.progress import progress_lines
from streamlearn.cli.output.table import print_facts, print_json, print_table
from streamlearn.errors import EXIT_PARTLY
from streamlearn.times import parse_time_ms, time_text

if TYPE_CHECKING:
    from streamlearn.trainer.evaluation import EvaluationResult, Pass
    from streamlearn.trainer.learning_loop import Tally

__all__ = ["evaluate"]

_SCORES = ("rows", "positives", "auc", "log_loss", "normalised_entropy", "calibration")


def evaluate(
    app: AppArgument,
    passes: Annotated[int, typer.Option(metavar="N", min=1, help="Number of passes over the samples.")] = 1,
    hold_out: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Share of the samples, the last by event time, that is held out and scored; 0 for none.",
            show_default="0.1",
        ),
    ] = None,
    test_from: Annotated[
        str, typer.Option(metavar="TIME", help="Hold out samples shown from this event time on; UTC.")
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
            metavar="OFFSETS", help="Stop reading here: `end` (the present end of the samples) or PARTITION:OFFSET,..."
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
    from streamlearn.trainer.intake.split import SplitRequest

    folder = load_app(app, tuple(set_ or ()))
    set_up_logging(folder.settings.telemetry)
    now = datetime.now(UTC)
    begin_ms, test_ms, end_ms = (parse_time_ms(text, now) if text else None for text in (begin, test_from, end))
    request = SplitRequest(begin_ms=begin_ms, end_ms=end_ms, test_ms=test_ms, hold_out=hold_out)
    load_tensorflow()
    from streamlearn.trainer import evaluate as evaluate_model

    def line(number: int, tally: Tally) -> str:
        loss = tally.loss / max(tally.rows, 1)
        return f"pass {number} of {passes}  {tally.rows:,} samples  loss {loss:.4f}"

    show = progress_lines(line)
    with stop_on_signals() as stop:
        result = evaluate_model(
            folder, request, stop, passes=passes, until_offset=until_offset, on_pass=_print_pass, show=show
        )
    _print(result, json=json)
    if len(result.passes) < passes:
        typer.echo(f"stopped after {len(result.passes)} of {passes} passes", err=True)
        raise typer.Exit(EXIT_PARTLY)


def _print_pass(done: Pass) -> None:
    """Print a line for a completed pass on stderr."""
    scores = (score for score in done.held_out.scores if not score.segment and score.auc is not None)
    aucs = (f"{score.label} AUC {score.auc:.4f}" for score in scores)
    print("  ".join([f"pass {done.number} is done", f"loss {done.loss:.4f}", *aucs]), file=sys.stderr, flush=True)


def _print(result: EvaluationResult, *, json: bool) -> None:
    split = result.split
    times = {"from": split.begin_ms, "test_from": split.test_ms, "to": split.end_ms, "complete": split.complete_ms}
    if json:
        times_ms = {f"{name}_ms": time_ms for name, time_ms in times.items()}
        print_json(times_ms | {"passes": [_facts(done) for done in result.passes]})
        return
    print_facts("samples", {name: None if time_ms is None else time_text(time_ms) for name, time_ms in times.items()})
    print_table([row for done in result.passes for row in _rows(done)], whole=True)


def _facts(done: Pass) -> dict[str, Any]:
    """Return a pass with all its scores, for JSON."""
    tally, held_out = done.tally, done.held_out
    return {
        "pass": done.number,
        "seconds": round(done.seconds, 2),
        "steps": tally.steps,
        "rows": tally.rows,
        "loss": done.loss,
        **{f"rows_{name}": count for name, count in tally.counts.items()},
        "rows_refused": tally.refused_rows,
        "rows_open": held_out.open_rows,
        "held_out": [
            {"label": score.label, "segment": score.segment, "text": score.text}
            | {name: getattr(score, name) for name in (*_SCORES, "kept", "is_complete")}
            for score in held_out.scores
        ],
    }


def _rows(done: Pass) -> Iterator[dict[str, Any]]:
    """Return a row for each label; one row without scores if no samples were held out."""
    learned = {"pass": done.number, "seconds": round(done.seconds, 1), "learned": done.tally.rows}
    learned["loss"] = round(done.loss, 4)
    labels = [score for score in done.held_out.scores if not score.segment]
    for score in labels:
        numbers = {name: getattr(score, name) for name in _SCORES}
        numbers = {name: round(value, 4) if isinstance(value, float) else value for name, value in numbers.items()}
        yield learned | {"held out": score.label} | numbers
    if not labels:
        yield learned
