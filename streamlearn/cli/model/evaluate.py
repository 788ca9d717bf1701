"""`streamlearn evaluate`: trains an application's model from scratch on a range of its samples, in several passes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.model.evaluate_grid import Variant, best_of, compared, variants_of
from streamlearn.cli.options import AppArgument, JsonOption, SetOption
from streamlearn.cli.output.progress import progress_lines
from streamlearn.cli.output.table import print_facts, print_json, print_table, without_empty
from streamlearn.errors import EXIT_PARTLY, UsageError
from streamlearn.times import parse_duration_ms, parse_time_ms, time_text

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder
    from streamlearn.trainer.evaluation import EvaluationResult, Pass
    from streamlearn.trainer.intake.split import Split, SplitRequest
    from streamlearn.trainer.learning_loop import Tally
    from streamlearn.trainer.validation.interval_scores import IntervalScore

__all__ = ["evaluate"]

_NEVER_MS, _BAR, _DAYS_MAX = 1 << 62, 20, 7
_OF_NUMBERS, _TEXT = ("mae", "rmse"), "segment"
_SCORES = ("rows", "positives", "auc", "log_loss", "normalised_entropy", "mae", "rmse", "calibration")


_IntervalsOption = Annotated[
    str,
    typer.Option(
        metavar="INTERVALS",
        help="Compare versions at these intervals, such as 1m,1h,1d,never. All samples are learned once; half are held "
        "out by default.",
    ),
]
_ModelsOption = Annotated[str, typer.Option(metavar="NAMES", help="Compare these models, such as deepfm,dcn_v2.")]
_GridOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUES", help="Compare these values of a setting, such as tables.rate=0.05,0.1."),
]


def evaluate(
    app: AppArgument,
    passes: Annotated[int, typer.Option(metavar="N", min=1, help="Number of passes over the samples.")] = 1,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Mix requests of every 16 steps, again in each pass.")
    ] = False,
    every: _IntervalsOption = "",
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
    segments: Annotated[
        bool, typer.Option("--segments", help="With --every, add the figures of each text of each segment.")
    ] = False,
    model: _ModelsOption = "",
    grid: _GridOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Train APP's model from scratch and score held-out samples after each pass. Touches no version."""
    from streamlearn.apps import load_app
    from streamlearn.models.tensorflow_load import load_tensorflow
    from streamlearn.telemetry import set_up_logging
    from streamlearn.trainer.intake.split import SplitRequest

    folder = load_app(app, tuple(set_ or ()))
    set_up_logging(folder.settings.telemetry)
    now = datetime.now(UTC)
    begin_ms, test_ms, end_ms = (parse_time_ms(text, now) if text else None for text in (begin, test_from, end))
    every_ms = _intervals(every, passes)
    if shuffle and every_ms:
        message = "--shuffle was given with --every"
        raise UsageError(message, help="versions of an interval are compared in the order of time")
    if every_ms and test_ms is None and hold_out is None:
        hold_out = 0.5
    request = SplitRequest(begin_ms=begin_ms, end_ms=end_ms, test_ms=test_ms, hold_out=hold_out)
    if every_ms and (model or grid):
        message = "--every was given with --model or --grid"
        raise UsageError(message, help="choose a model and settings first, then compare intervals with them")
    variants = variants_of(app, tuple(set_ or ()), model, grid or ()) if model or grid else []
    load_tensorflow()
    if every_ms:
        _compare_intervals(folder, request, every_ms, until_offset, segments=segments, json=json)
    elif variants:
        _compare_variants(variants, request, passes, json=json, until_offset=until_offset, is_shuffled=shuffle)
    else:
        _evaluate_passes(folder, request, passes, json=json, until_offset=until_offset, is_shuffled=shuffle)


def _evaluate_passes(folder: AppFolder, request: SplitRequest, passes: int, *, json: bool, **options: Any) -> None:
    from streamlearn.replay import stop_on_signals
    from streamlearn.trainer import evaluate as evaluate_model

    def line(number: int, tally: Tally) -> str:
        loss = tally.loss / max(tally.rows, 1)
        return f"pass {number} of {passes}  {tally.rows:,} samples  loss {loss:.4f}"

    show = progress_lines(line)
    with stop_on_signals() as stop:
        result = evaluate_model(folder, request, stop, passes=passes, on_pass=_print_pass, show=show, **options)
    _print(result, json=json)
    if len(result.passes) < passes:
        typer.echo(f"stopped after {len(result.passes)} of {passes} passes", err=True)
        raise typer.Exit(EXIT_PARTLY)


def _intervals(text: str, passes: int) -> dict[str, int | None]:
    """Return the intervals of a text, None for `never`, the shortest first."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not text:
        return {}
    if not parts:
        message = f"{text!r} has no interval"
        raise UsageError(message, help="give --every 1m,1h,1d,never, for example")
    if passes > 1:
        message = "--passes was given with --every"
        raise UsageError(message, help="versions of an interval are compared in one pass: leave --passes out")
    found = {part: None if part == "never" else parse_duration_ms(part) for part in parts}
    return dict(sorted(found.items(), key=lambda item: item[1] or _NEVER_MS))


def _compare_intervals(
    folder: AppFolder,
    request: SplitRequest,
    every_ms: dict[str, int | None],
    until_offset: str,
    *,
    segments: bool,
    json: bool,
) -> None:
    from streamlearn.replay import stop_on_signals
    from streamlearn.trainer.interval_evaluation import evaluate_intervals

    show = progress_lines(lambda rows: f"{rows:,} samples learned")
    with stop_on_signals() as stop:
        split, scores = evaluate_intervals(
            folder, request, every_ms, stop, until_offset=until_offset, by_segment=segments, show=show
        )
        if stop.is_set():
            typer.echo("stopped before all samples were learned", err=True)
            raise typer.Exit(EXIT_PARTLY)
    times = _times_ms(split)
    if json:
        facts = {f"{name}_ms": time_ms for name, time_ms in times.items()}
        print_json(facts | {"intervals": [vars(score) for score in scores]})
        return
    print_facts("samples", {name: None if time_ms is None else time_text(time_ms) for name, time_ms in times.items()})
    for segment in dict.fromkeys(score.segment for score in scores):
        mine = [score for score in scores if score.segment == segment]
        widest = max((abs(score.gain) for score in mine if score.gain), default=0.0)
        rows = [_interval_row(score, widest, list(every_ms)[-1]) for score in mine]
        print_table(without_empty(rows, [_TEXT, "MAE"]), whole=True)


def _compare_variants(
    variants: list[Variant], request: SplitRequest, passes: int, *, json: bool, **options: Any
) -> None:
    from streamlearn.replay import stop_on_signals

    done = []
    with stop_on_signals() as stop:
        for variant, last in compared(variants, request, stop, passes=passes, **options):
            _print_pass(last)
            done.append((variant, last))
    best = best_of(done)
    hits = [variant.facts | row for variant, last in done for row in _hit_rows(last)]
    if json:
        results = [{"facts": variant.facts, "is_best": variant is best} | _facts(last) for variant, last in done]
        print_json({"variants": results})
    else:
        rows = [variant.facts | row for variant, last in done for row in _rows(last)]
        print_table(without_empty(rows, _OF_NUMBERS), whole=True)
        _print_hits(hits)
        if best is not None:
            has_numbers = any(score.mae is not None for _, last in done for score in last.held_out.scores)
            typer.echo(f"the lowest {'error' if has_numbers else 'normalised entropy'} has:")
            typer.echo("\n".join(f"  {line}" for line in best.lines))
    if len(done) < len(variants):
        typer.echo(f"stopped after {len(done)} of {len(variants)} combinations", err=True)
        raise typer.Exit(EXIT_PARTLY)


def _interval_row(score: IntervalScore, widest: float, last: str) -> dict[str, Any]:
    def number(value: float | None) -> float | None:
        return None if value is None else round(value, 4)

    bounds = None if score.gain_low is None else f"{score.gain_low:+.4f} to {score.gain_high:+.4f}"
    size = round(_BAR * abs(score.gain) / widest) if widest and score.gain else 0
    bar = ("█" if (score.gain or 0) > 0 else "-") * size
    return {
        "label": score.label, _TEXT: f"{score.segment} {score.text}" if score.segment else None,
        "every": score.every, "rows": score.rows, "AUC": number(score.auc),
        "MAE": number(score.mae),
        f"over {last}": None if score.gain is None else f"{score.gain:+.4f}", "95 % interval": bounds,
        "log loss": number(score.log_loss), "calibration": number(score.calibration), "": bar,
    }  # fmt: skip


def _times_ms(split: Split) -> dict[str, int | None]:
    return {"from": split.begin_ms, "test_from": split.test_ms, "to": split.end_ms, "complete": split.complete_ms}


def _print_pass(done: Pass) -> None:
    """Print a line for a completed pass on stderr."""
    scores = [score for score in done.held_out.scores if not score.segment]
    found = [f"{score.label} AUC {score.auc:.4f}" for score in scores if score.auc is not None]
    found += [f"{score.label} MAE {score.mae:.4f}" for score in scores if score.mae is not None]
    print("  ".join([f"pass {done.number} is done", f"loss {done.loss:.4f}", *found]), file=sys.stderr, flush=True)


def _print(result: EvaluationResult, *, json: bool) -> None:
    split = result.split
    times = _times_ms(split)
    if json:
        times_ms = {f"{name}_ms": time_ms for name, time_ms in times.items()}
        print_json(times_ms | {"passes": [_facts(done) for done in result.passes]})
        return
    print_facts("samples", {name: None if time_ms is None else time_text(time_ms) for name, time_ms in times.items()})
    print_table(without_empty([row for done in result.passes for row in _rows(done)], _OF_NUMBERS), whole=True)
    _print_hits([row for done in result.passes for row in _hit_rows(done)])


def _print_hits(rows: list[dict[str, Any]]) -> None:
    from streamlearn.cli.report.hits import HITS

    if rows:
        print_table(rows, HITS, whole=True)


def _hit_rows(done: Pass) -> list[dict[str, Any]]:
    """Return a row for each of the last days that the towers learned."""
    from streamlearn.trainer.towers.hit_rates import TOPS

    rows = []
    for day in done.hit_rates[-_DAYS_MAX:]:
        row: dict[str, Any] = {"day": time_text(day.day_ms)[:10], "positives": day.positives, "items": day.items}
        for top, towers, popularity in zip(TOPS, day.towers, day.popularity, strict=True):
            row |= {f"top {top}": round(towers, 4), f"popular {top}": round(popularity, 4)}
        rows.append(row)
    return rows


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
        **({"hit_rates": [vars(day) for day in done.hit_rates]} if done.hit_rates else {}),
    }


def _rows(done: Pass) -> Iterator[dict[str, Any]]:
    """Return a row for each label; one row without scores if no samples were held out."""
    learned = {"pass": done.number, "seconds": round(done.seconds, 1), "learned": done.tally.rows}
    learned["loss"] = round(done.loss, 4)
    labels = [score for score in done.held_out.scores if not score.segment]
    for score in labels:
        numbers = {name: getattr(score, name) for name in _SCORES}
        numbers["positives"] = score.positives if score.mae is None else None
        numbers = {name: round(value, 4) if isinstance(value, float) else value for name, value in numbers.items()}
        yield learned | {"held out": score.label} | numbers
    if not labels:
        yield learned
