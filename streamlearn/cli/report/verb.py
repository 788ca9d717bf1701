"""`streamlearn report`: the quality of a model's first predictions over event time, and the events of its versions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.options import AppArgument, JsonOption, SetOption
from streamlearn.cli.output.table import print_json, print_table, without_empty
from streamlearn.cli.output.units import age_text, counted, whole_units
from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.errors import ScoresMissing
from streamlearn.times import time_text

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder
    from streamlearn.cli.report.arms import ArmFigure, ArmScore
    from streamlearn.cli.report.marks import Mark, Story
    from streamlearn.cli.report.span import Span, SpanScore
    from streamlearn.trainer.validation import ScoreColumns

__all__ = ["report"]

_VERSIONS_SHOWN, _MARKS_SHOWN = 50, 200
_ARMS = "Arms of experiments, with bounds by a bootstrap over users"
_ARM_FIGURES = "Predictions by arm, with bounds by a bootstrap over users"
_SERVED = ("served rows", "served AUC", "served log loss", "served MAE")
Row = dict[str, Any]


def report(
    app: AppArgument,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of the report; APP/.streamlearn/report by default.")
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write all scores as Parquet. The page is then written only with --out."),
    ] = None,
    begin: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Show windows from this event time on; UTC.")
    ] = "",
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="Show windows up to this event time; UTC.")] = "",
    moves: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of moves of the pointer to read, newest first.")
    ] = 5_000,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Plot the quality of APP's first predictions over event time, with events of its versions."""
    from streamlearn.apps import load_app
    from streamlearn.cli.report.arms import arm_figures_of, arms_of
    from streamlearn.cli.report.hits import HITS, hits_of
    from streamlearn.cli.report.marks import read_story
    from streamlearn.cli.report.span import span_of, windows_of, within
    from streamlearn.trainer.validation.score_log import read_scores, scores_folder
    from streamlearn.versions import open_store

    folder = load_app(app, set_ or ())
    name, settings = folder.app.name, folder.settings
    try:
        all_scores = read_scores(scores_folder(folder.folder, settings.validation))
    except ScoresMissing as error:
        raise ScoresMissing(
            error.message, help=f"{_first_window(folder)}; validation.folder names the folder"
        ) from None
    if parquet is not None:
        all_scores.write_parquet(parquet)
        if out is None:
            facts = {"model": name, "scores": len(all_scores), "torn_lines": all_scores.torn_lines}
            line = f"{counted(len(all_scores), 'score')} in {parquet}"
            print_json(facts | {"files": [str(parquet)]}) if json else typer.echo(line)
            return
    scores = within(all_scores.best(), begin, end)
    store = open_store(folder.store_url, settings=settings.versions)
    story = read_story(store, name, moves_max=moves, is_live=settings.topics.time == "wall")
    span = span_of(scores)
    windows, first = windows_of(scores), {one.name: one.arms[0].name for one in settings.access.experiments}
    arms, figures = arms_of(windows, first), arm_figures_of(windows, first)
    hits = without_empty(hits_of(story.known, begin, end), ["popular 100"])
    tables = ({_ARMS: _arm_rows(arms)} if arms else {}) | ({_ARM_FIGURES: _figure_rows(figures)} if figures else {})
    tables |= {HITS: hits} if hits else {}
    files = _write(out or folder.folder / ".streamlearn" / "report", name, scores, span, story, tables=tables)
    files += [parquet] if parquet is not None else []
    newest = _newest(scores)
    if json:
        facts = {"model": name, "scores": len(scores), "torn_lines": scores.torn_lines, "newest": newest}
        facts |= {"span_window_s": span.window_s, "span": [vars(one) for one in span.scores]}
        facts |= {"arms": [vars(one) for one in arms], "arm_figures": [vars(one) for one in figures]}
        facts |= {"hit_rates": hits} if hits else {}
        print_json(facts | story.as_json() | {"files": [str(file) for file in files]})
        return
    print_table(_table_of(newest), whole=True)
    typer.echo(f"{_span_title(span)}:")
    print_table(_span_rows([one for one in span.scores if not one.segment]), whole=True)
    for title, rows in tables.items():
        typer.echo(f"{title}:")
        print_table(rows, whole=True)
    for note in _notes(scores, story, span):
        typer.echo(note)
    typer.echo(f"the report is in {files[0]}")


def _span_title(span: Span) -> str:
    width, begin, end = whole_units(span.window_s * 1_000), time_text(span.begin_ms), time_text(span.end_ms)
    return f"All windows of {width} from {begin} to {end} UTC"


def _span_rows(span: Sequence[SpanScore]) -> list[Row]:
    rows = [
        {
            "label": one.label, "segment": f"{one.segment} {one.text}" if one.segment else None,
            "windows": one.windows, "rows": one.rows,
            "AUC": _rounded(one.auc), "AUC, 95 %": _interval(one.auc_low, one.auc_high),
            "log loss": _rounded(one.log_loss), "log loss, 95 %": _interval(one.log_loss_low, one.log_loss_high),
            "normalised": _rounded(one.normalised_entropy),
            "MAE": _rounded(one.mae), "MAE, 95 %": _interval(one.mae_low, one.mae_high), "RMSE": _rounded(one.rmse),
            "calibration": _rounded(one.calibration),
            "calibration, 95 %": _interval(one.calibration_low, one.calibration_high),
            **_served((one.served_rows, one.served_auc, one.served_log_loss, one.served_mae)),
        }
        for one in span
    ]  # fmt: skip
    maybe = ["segment", "AUC", "AUC, 95 %", "log loss", "log loss, 95 %", "normalised", "MAE", "MAE, 95 %", "RMSE"]
    return without_empty(rows, [*maybe, "calibration, 95 %", *_SERVED])


def _figure_rows(figures: Sequence[ArmFigure]) -> list[Row]:
    return [
        {
            "label": one.label, "experiment": one.experiment, "arm": one.arm,
            "figure": {"auc": "AUC", "mae": "MAE", "log_loss": "log loss"}.get(one.figure, one.figure),
            "value": _rounded(one.value), "95 %": _interval(one.low, one.high),
            "against": one.against or None, "difference": _rounded(one.difference),
            "difference, 95 %": _interval(one.difference_low, one.difference_high), "finding": one.finding or None,
        }
        for one in figures
    ]  # fmt: skip


def _arm_rows(arms: Sequence[ArmScore]) -> list[Row]:
    return [
        {
            "label": one.label, "experiment": one.experiment, "arm": one.arm, "rows": one.rows,
            "rate": _rounded(one.rate), "rate, 95 %": _interval(one.rate_low, one.rate_high),
            "against": one.against or None, "difference": _rounded(one.difference),
            "difference, 95 %": _interval(one.difference_low, one.difference_high), "finding": one.finding or None,
        }
        for one in arms
    ]  # fmt: skip


def _served(figures: Sequence[float | None]) -> Row:
    """Return what nodes answered for the rows that they scored, by column."""
    rows, *others = figures
    return dict(zip(_SERVED, [rows or None, *map(_rounded, others)], strict=True))


def _interval(low: float | None, high: float | None) -> str | None:
    return None if low is None else f"{low:.4f} to {high:.4f}"


def _first_window(folder: AppFolder) -> str:
    from streamlearn.versions import History, open_store

    store = open_store(folder.store_url, settings=folder.settings.versions)
    known = History(store, folder.app.name).read()
    return folder.first_window([entry.watermark_ms for entry in known if entry.watermark_ms is not None])


def _write(
    out: Path, model: str, scores: ScoreColumns, span: Span, story: Story, *, tables: dict[str, list[Row]]
) -> list[Path]:
    """Write the page and its figures; return the files, the page first."""
    from streamlearn.cli.report.figures import draw_freshness, draw_labels, draw_segment
    from streamlearn.cli.report.page import page_of

    drawn = {"labels": ("First predictions, by label", draw_labels(scores, story))}
    for segment in sorted(set(scores["segment"].tolist()) - {""}):
        drawn[f"segment-{segment}"] = (f"First predictions, by {segment}", draw_segment(scores, segment))
    if story.activations:
        drawn["freshness"] = ("Freshness", draw_freshness(story))
    page = page_of(
        f"{model}: first predictions and versions",
        [f"Written {time_text(SYSTEM_CLOCK.wall_ms())} UTC.", *_notes(scores, story, span)],
        dict(drawn.values()),
        {
            _span_title(span): _span_rows(span.scores),
            **tables,
            "The newest windows": _table_of(_newest(scores)),
            "Events": [_mark_row(mark) for mark in story.marks if mark.what != "promote"][-_MARKS_SHOWN:],
            "The newest versions": _version_rows(story),
        },
    )
    out.mkdir(parents=True, exist_ok=True)
    files = [out / "report.html", *(out / f"{name}.png" for name in drawn)]
    files[0].write_text(page)
    for file, (_, png) in zip(files[1:], drawn.values(), strict=True):
        file.write_bytes(png)
    return files


def _newest(scores: ScoreColumns) -> list[Row]:
    """Return the newest window of each label and width."""
    newest: dict[tuple[str, int], Row] = {}
    whole = scores.where(scores["segment"] == "")
    for values in zip(*(whole[name].tolist() for name in whole.columns), strict=True):
        row: Row = {name: None if value != value else value for name, value in zip(whole.columns, values, strict=True)}
        row["window_s"] = (row["end_ms"] - row["begin_ms"]) // 1_000
        newest[row["label"], row["window_s"]] = row
    return [newest[key] for key in sorted(newest)]


def _table_of(newest: Sequence[Row]) -> list[Row]:
    maybe = ["AUC", "log loss", "normalised", "MAE", "RMSE", *_SERVED]
    return without_empty([_for_people(row) for row in newest], maybe)


def _for_people(row: Row) -> Row:
    from streamlearn.cli.report.span import SERVED

    entropy = row["log_loss_nats"] / row["base_entropy_nats"] if row["base_entropy_nats"] else None
    return {
        "label": row["label"],
        "window": age_text(row["window_s"] * 1_000),
        "until (UTC)": time_text(row["end_ms"]),
        "rows": row["rows"],
        "AUC": _rounded(row["auc_ratio"]),
        "log loss": _rounded(row["log_loss_nats"]),
        "normalised": _rounded(entropy),
        "MAE": _rounded(row["mae"]),
        "RMSE": _rounded(row["rmse"]),
        "calibration": _rounded(row["calibration_ratio"]),
        "kept": _rounded(row["kept_ratio"]),
        "complete": row["is_complete"],
        **_served([row["served_rows"], *(row[name] for name in SERVED)]),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _notes(scores: ScoreColumns, story: Story, span: Span) -> list[str]:
    """Return notes for readers of the figures."""
    partial = int((~scores["is_complete"]).sum())
    lines = [
        f"{counted(len(scores), 'score')}, {partial:,} from incomplete windows; "
        f"{counted(len(story.known), 'version')}, {counted(story.moves, 'move')} of the pointer."
    ]
    if any(one.interval == "windows" for one in span.scores):
        lines.append(
            "Some 95 % intervals are over windows, as if no user came in two of them: windows under an hour and those "
            "of earlier releases have no sums by user, or there are under 20 groups of users."
        )
    if story.moves_left:
        lines.append(f"{counted(story.moves_left, 'move')} of the pointer, older or damaged, are not shown.")
    unknown = sum(mark.event_ms is None for mark in story.marks if mark.what != "promote")
    if unknown:
        lines.append(f"{counted(unknown, 'mark')} without a known event time: only in the table.")
    if scores.torn_lines:
        lines.append(
            f"{counted(scores.torn_lines, 'line')} of scores, cut off when a trainer was killed, are left out."
        )
    return lines


def _mark_row(mark: Mark) -> Row:
    return {
        "wall (UTC)": time_text(mark.wall_ms),
        "event time (UTC)": "" if mark.event_ms is None else time_text(mark.event_ms),
        "what": mark.what,
        "version": mark.version,
        "by": mark.by,
        "reason": mark.reason,
    }


def _version_rows(story: Story) -> list[Row]:
    active_after_s = {activation.version: activation.age_s for activation in reversed(story.activations)}
    return [
        {
            "version": entry.version,
            "kind": entry.kind,
            "verdict": entry.outcome or "",
            "written (UTC)": time_text(entry.written_wall_ms),
            "learned up to (UTC)": "" if entry.watermark_ms is None else time_text(entry.watermark_ms),
            "active after (s)": active_after_s.get(entry.version),
        }
        for entry in story.known[-_VERSIONS_SHOWN:][::-1]
    ]
