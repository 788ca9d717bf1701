"""Figures of a report: curves of scores over event time, with marks, as PNG. It reads nothing."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from streamlearn.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from streamlearn.cli.report.marks import Story
    from streamlearn.trainer.validation import ScoreColumns

__all__ = ["MARKED", "draw_freshness", "draw_labels", "draw_segment", "figure_of", "png_of", "stamps"]

# What is drawn as a line over the curves, and its colour. Promotions are too many.
MARKED = {
    "rejected": "tab:red",
    "rollback": "tab:purple",
    "release": "tab:green",
    "revert": "tab:brown",
    "canary": "tab:cyan",
    "shadow": "tab:gray",
}
_PANELS = {"auc_ratio": "AUC", "log_loss_nats": "log loss (nats)", "calibration_ratio": "calibration"}
_EVENT_TIME = "event time of impressions, UTC; hollow points are incomplete"
_TEXTS_MAX = 10
_DPI = 110


def draw_labels(scores: ScoreColumns, story: Story) -> bytes:
    """AUC, log loss and calibration by label: the shortest windows as thin lines, the next as thick ones."""
    figure, panels = figure_of(len(_PANELS), 1, 9.0)
    is_whole = scores["segment"] == ""
    widths = _widths(scores)[:2]
    labels = list(dict.fromkeys(scores["label"].tolist()))
    for axes, (column, name) in zip(panels, _PANELS.items(), strict=True):
        for number, label in enumerate(labels):
            for thick, width in enumerate(widths):
                mine = scores.where(is_whole & (scores["label"] == label) & (_width_s(scores) == width))
                said = f"{label}, {_width_text(width)}"
                is_only = len(widths) == 1
                _curve(axes, mine, column, f"C{number}", said, is_thick=bool(thick) or is_only)
        if column == "calibration_ratio":
            axes.axhline(1.0, color="grey", linewidth=0.8, linestyle="--")
        _mark(axes, story, is_named=axes is panels[0])
        axes.set_ylabel(name)
    panels[0].legend(loc="best", fontsize="small")
    panels[-1].set_xlabel(_EVENT_TIME)
    return png_of(figure)


def draw_segment(scores: ScoreColumns, segment: str) -> bytes:
    """AUC, log loss and calibration by text of a segment, one column of panels for each label."""
    widths = _widths(scores)
    width = widths[min(1, len(widths) - 1)]
    mine = scores.where((scores["segment"] == segment) & (_width_s(scores) == width))
    labels = list(dict.fromkeys(scores["label"].tolist()))
    texts = _texts(mine)
    figure, panels = figure_of(len(_PANELS), len(labels), 8.0)
    for at, (column, name) in enumerate(_PANELS.items()):
        for place, label in enumerate(labels):
            axes = panels[at * len(labels) + place]
            for number, text in enumerate(texts[:_TEXTS_MAX]):
                rows = mine.where((mine["label"] == label) & (mine["text"] == text))
                _curve(axes, rows, column, f"C{number}", _plain(text) or "(empty)", is_thick=True)
            if not at:
                axes.set_title(label, fontsize="medium")
            axes.set_ylabel(name if not place else "")
    left = f", the {_TEXTS_MAX} with most rows of {len(texts)}" if len(texts) > _TEXTS_MAX else ""
    figure.suptitle(f"by {segment}{left}; windows of {_width_text(width)}", fontsize="medium")
    panels[0].legend(loc="best", fontsize="small")
    for axes in panels[-len(labels) :]:
        axes.set_xlabel(_EVENT_TIME)
    return png_of(figure)


def draw_freshness(story: Story) -> bytes:
    """How old versions were when they became active, and how far what they had learned was behind."""
    figure, panels = figure_of(1, 1, 3.5)
    (axes,) = panels
    walls = _times(np.array([one.wall_ms for one in story.activations], np.int64))
    # Each version for itself: between two there is nothing that a line could say.
    axes.plot(walls, [one.age_s for one in story.activations], "o", label="since it was written")
    behind = [one.behind_s for one in story.activations]
    if any(one is not None for one in behind):
        values = np.array([np.nan if one is None else one for one in behind])
        axes.plot(walls, values, "o", label="since the newest event that it had learned")
    for what, colour in MARKED.items():
        at = [one.wall_ms for one in story.marks if one.what == what]
        for number, place in enumerate(_times(np.array(at, np.int64))):
            axes.axvline(place, color=colour, linewidth=0.8, alpha=0.7, label="" if number else what)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("age when activated (s)")
    axes.set_xlabel("wall time, UTC")
    axes.legend(loc="best", fontsize="small")
    return png_of(figure)


def figure_of(rows: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of panels over event time, row by row.

    Args:
        rows: How many rows of panels.
        columns: How many panels a row has.
        height: In inches.
    """
    try:
        from matplotlib import dates, ticker
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        message = f"a report needs matplotlib, which cannot be loaded: {error}"
        raise UsageError(
            message, help="pip install 'streamlearn[report]'; --parquet without --out does not need it"
        ) from None
    figure = Figure(figsize=(max(11.0, 4.5 * columns), height), layout="constrained")
    FigureCanvasAgg(figure)
    panels = [one for row in figure.subplots(rows, columns, sharex=True, squeeze=False) for one in row]
    untyped: Any = dates
    for axes in panels:
        axes.xaxis.set_major_locator(untyped.AutoDateLocator(tz="UTC"))
        formatter: Any = ticker.NullFormatter()
        formatter.format_ticks = partial(_stamps_shown, axes, untyped.num2date)
        axes.xaxis.set_major_formatter(formatter)
        axes.grid(alpha=0.3)
    return figure, panels


def _stamps_shown(axes: Axes, date_of: Any, places: Sequence[float]) -> list[str]:
    """The stamps of an axis, whose locator gives a place before the first that is shown."""
    hidden = sum(place < axes.get_xlim()[0] for place in places)
    return [""] * hidden + stamps([date_of(place, tz="UTC") for place in places[hidden:]])


def stamps(times: Sequence[datetime]) -> list[str]:
    r"""Labels on an axis of time: the day below the first, and below each that is of another day.

    Examples:
        >>> stamps([datetime(2023, 11, 14, 23, 30), datetime(2023, 11, 14, 23, 45), datetime(2023, 11, 15)])
        ['23:30\n2023-11-14', '23:45', '00:00\n2023-11-15']
        >>> stamps([datetime(2023, 11, 14), datetime(2023, 11, 16)])
        ['2023-11-14', '2023-11-16']
        >>> stamps([datetime(2023, 11, 14, 1, 2, 3), datetime(2023, 11, 14, 1, 2, 3, 500_000)])
        ['01:02:03.0\n2023-11-14', '01:02:03.5']
    """
    days = [f"{one:%Y-%m-%d}" for one in times]
    if all((one.hour, one.minute, one.second, one.microsecond) == (0, 0, 0, 0) for one in times):
        return days
    has_parts, has_seconds = (any(getattr(one, name) for one in times) for name in ("microsecond", "second"))
    form = "%H:%M:%S" if has_seconds or has_parts else "%H:%M"
    said = [f"{one:{form}}" + (f".{one.microsecond // 100_000}" if has_parts else "") for one in times]
    before = ["", *days]
    return [f"{time}\n{day}" if day != last else time for time, day, last in zip(said, days, before, strict=False)]


def png_of(figure: Figure) -> bytes:
    """A figure as PNG."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=_DPI)
    return out.getvalue()


def _curve(axes: Axes, scores: ScoreColumns, column: str, colour: str, said: str, *, is_thick: bool) -> None:
    """One line through the middles of windows; those that are not complete are hollow."""
    if not len(scores):
        return
    values = scores[column]
    at = _times((scores["begin_ms"] + scores["end_ms"]) // 2)
    style: dict[str, Any] = (
        {"linewidth": 1.6, "marker": ".", "alpha": 0.9} if is_thick else {"linewidth": 0.7, "alpha": 0.5}
    )
    axes.plot(at, values, color=colour, label=said, **style)
    partial = ~scores["is_complete"]
    if partial.any():
        axes.scatter(at[partial], values[partial], s=22, facecolors="none", edgecolors=colour, linewidths=0.8)


def _mark(axes: Axes, story: Story, *, is_named: bool) -> None:
    for at, mark in story.event_times(*MARKED):
        (place,), colour = _times(np.array([at], np.int64)), MARKED[mark.what]
        axes.axvline(place, color=colour, linewidth=0.9, alpha=0.7)
        if is_named:
            place_in = axes.get_xaxis_transform()
            said = f"{mark.what} {mark.version}"
            axes.text(
                place, 0.98, said, rotation=90, fontsize=7, va="top", ha="right", transform=place_in, color=colour
            )


def _times(ms: npt.NDArray[np.int64]) -> npt.NDArray[np.datetime64]:
    return ms.astype("datetime64[ms]")


def _width_s(scores: ScoreColumns) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = (scores["end_ms"] - scores["begin_ms"]) // 1_000
    return found


def _widths(scores: ScoreColumns) -> list[int]:
    """The widths of windows, shortest first."""
    return [int(one) for one in np.unique(_width_s(scores))]


def _width_text(seconds: int) -> str:
    """A width in the largest unit that says it exactly."""
    for name, unit in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds % unit == 0:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"


def _texts(scores: ScoreColumns) -> Sequence[str]:
    """The texts of a segment, those with most rows first."""
    counts: dict[str, int] = {}
    for text, rows in zip(scores["text"].tolist(), scores["rows"].tolist(), strict=True):
        counts[text] = counts.get(text, 0) + rows
    return sorted(counts, key=lambda text: (-counts[text], text))


def _plain(text: str) -> str:
    """A text as a legend takes it: no mathematics, and no leading underscore, which hides a line."""
    said = text.replace("$", r"\$")
    return f" {said}" if said.startswith("_") else said
