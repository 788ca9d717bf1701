"""`streamlearn report`: how good a model's first predictions were over event time, and what became of its versions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.options import AppArgument, JsonOption, SetOption
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.cli.output.units import age_text, counted, time_text
from streamlearn.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from streamlearn.cli.report.marks import Story
    from streamlearn.trainer.validation import ScoreColumns

__all__ = ["report"]

_VERSIONS_SHOWN, _MARKS_SHOWN = 50, 200
Row = dict[str, Any]


def report(
    app: AppArgument,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Folder of the report; APP/.streamlearn/report by default."),
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(
            "--parquet", metavar="FILE", help="Write all scores as Parquet. The page is then written only with --out."
        ),
    ] = None,
    moves: Annotated[
        int, typer.Option("--moves", metavar="N", min=1, help="Number of moves of the pointer to read, newest first.")
    ] = 5_000,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Plot the quality of APP's first predictions over event time, with events of its versions."""
    from streamlearn.apps import load_app
    from streamlearn.cli.report.marks import read_story
    from streamlearn.trainer.validation.score_log import read_scores, scores_folder
    from streamlearn.versions import open_store

    found = load_app(app, set_ or ())
    folder = scores_folder(found.folder, found.settings.validation)
    written = read_scores(folder)
    if parquet is not None:
        written.write_parquet(parquet)
        if out is None:
            said = {"model": found.app.name, "scores": len(written), "torn_lines": written.torn_lines}
            _tell(said | {"files": [str(parquet)]}, f"{counted(len(written), 'score')} in {parquet}", json)
            return
    scores = written.best()
    is_live = found.settings.topics.time == "wall"
    store = open_store(found.store_url, settings=found.settings.versions)
    story = read_story(store, found.app.name, moves_max=moves, is_live=is_live)
    files = _write(out or found.folder / ".streamlearn" / "report", found.app.name, scores, story)
    files += [parquet] if parquet is not None else []
    newest = _newest(scores)
    if json:
        said = {"model": found.app.name, "scores": len(scores), "torn_lines": scores.torn_lines, "newest": newest}
        print_json(said | story.as_json() | {"files": [str(file) for file in files]})
        return
    print_table([_for_people(row) for row in newest], whole=True)
    for one in _said(scores, story):
        typer.echo(one)
    typer.echo(f"the report is in {files[0]}")


def _tell(said: Row, line: str, json: bool) -> None:
    if json:
        print_json(said)
    else:
        typer.echo(line)


def _write(out: Path, model: str, scores: ScoreColumns, story: Story) -> list[Path]:
    """Write the page and its figures; the page first."""
    from streamlearn.cli.report.figures import draw_freshness, draw_labels, draw_segment
    from streamlearn.cli.report.page import page_of

    drawn = {"labels": ("First predictions, by label", draw_labels(scores, story))}
    for segment in sorted(set(scores["segment"].tolist()) - {""}):
        drawn[f"segment-{segment}"] = (f"First predictions, by {segment}", draw_segment(scores, segment))
    if story.activations:
        drawn["freshness"] = ("Freshness", draw_freshness(story))
    page = page_of(
        f"{model}: first predictions and versions",
        [f"Written {time_text(SYSTEM_CLOCK.wall_ms())} UTC.", *_said(scores, story)],
        dict(drawn.values()),
        {
            "The newest windows": [_for_people(row) for row in _newest(scores)],
            "Events": [_of_mark(vars(one)) for one in story.marks if one.what != "promote"][-_MARKS_SHOWN:],
            "The newest versions": _versions(story),
        },
    )
    out.mkdir(parents=True, exist_ok=True)
    files = [out / "report.html", *(out / f"{name}.png" for name in drawn)]
    files[0].write_text(page)
    for file, (_, png) in zip(files[1:], drawn.values(), strict=True):
        file.write_bytes(png)
    return files


def _newest(scores: ScoreColumns) -> list[Row]:
    """The newest window of each label and width."""
    found: dict[tuple[str, int], Row] = {}
    whole = scores.where(scores["segment"] == "")
    for values in zip(*(whole[name].tolist() for name in whole.columns), strict=True):
        row: Row = {name: None if value != value else value for name, value in zip(whole.columns, values, strict=True)}
        row["window_s"] = (row["end_ms"] - row["begin_ms"]) // 1_000
        found[row["label"], row["window_s"]] = row
    return [found[key] for key in sorted(found)]


def _for_people(row: Row) -> Row:
    entropy = row["log_loss_nats"] / row["base_entropy_nats"] if row["base_entropy_nats"] else None
    return {
        "label": row["label"],
        "window": age_text(row["window_s"] * 1_000),
        "until (UTC)": time_text(row["end_ms"]),
        "rows": row["rows"],
        "AUC": _rounded(row["auc_ratio"]),
        "log loss": _rounded(row["log_loss_nats"]),
        "normalised": _rounded(entropy),
        "calibration": _rounded(row["calibration_ratio"]),
        "kept": _rounded(row["kept_ratio"]),
        "complete": row["is_complete"],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _said(scores: ScoreColumns, story: Story) -> list[str]:
    """Notes for readers of the figures."""
    partial = int((~scores["is_complete"]).sum())
    lines = [
        f"{counted(len(scores), 'score')}, {partial:,} from incomplete windows; "
        f"{counted(len(story.known), 'version')}, {counted(story.moves, 'move')} of the pointer."
    ]
    if story.moves_left:
        lines.append(f"{counted(story.moves_left, 'move')} of the pointer, older or damaged, are not shown.")
    unknown = sum(one.event_ms is None for one in story.marks if one.what != "promote")
    if unknown:
        lines.append(f"{counted(unknown, 'mark')} without a known event time: only in the table.")
    if scores.torn_lines:
        lines.append(
            f"{counted(scores.torn_lines, 'line')} of scores, cut off when a trainer was killed, are left out."
        )
    return lines


def _of_mark(mark: Row) -> Row:
    return {
        "wall (UTC)": time_text(mark["wall_ms"]),
        "event time (UTC)": "" if mark["event_ms"] is None else time_text(mark["event_ms"]),
        "what": mark["what"],
        "version": mark["version"],
        "by": mark["by"],
        "reason": mark["reason"],
    }


def _versions(story: Story) -> list[Row]:
    activated = {one.version: one for one in reversed(story.activations)}
    rows = []
    for one in story.known[-_VERSIONS_SHOWN:][::-1]:
        first = activated.get(one.version)
        rows.append(
            {
                "version": one.version,
                "kind": one.kind,
                "verdict": one.outcome or "",
                "written (UTC)": time_text(one.written_wall_ms),
                "learned up to (UTC)": "" if one.watermark_ms is None else time_text(one.watermark_ms),
                "active after (s)": None if first is None else first.age_s,
            }
        )
    return rows
