"""Figures of a report: curves of scores over event time, with marks, as PNG. It reads nothing itself."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from streamlearn.cli.output.units import whole_units
from streamlearn.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from streamlearn.cli.report.marks import Story
    from streamlearn.trainer.validation import ScoreColumns

__all__ = ["draw_freshness", "draw_labels", "draw_segment", "figure_of", "png_of"]

# Kinds of marks that are drawn as vertical lines, with their colours. Promotions are too frequent.
_COLOURS = {
    "rejected": "tab:red",
    "rollback": "tab:purple",
    "release": "tab:green",
    "revert": "tab:brown",
    "canary": "tab:cyan",
    "shadow": "tab:gray",
}
_PANELS = {
    "auc_ratio": "AUC",
    "log_loss_nats": "log loss (nats)",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "calibration_ratio": "calibration",
    "served_auc_ratio": "AUC of nodes' answers",
    "served_mae": "MAE of nodes' answers",
}
_EVENT_TIME = "event time of impressions, UTC; hollow points are incomplete"
_TEXTS_MAX = 10
_DPI = 110


def draw_labels(scores: ScoreColumns, story: Story) -> bytes:
    """Draw all figures by label: the shortest windows as thin lines, the next as thick ones."""
    drawn = _panels(scores)
    figure, panels = figure_of(len(drawn), 1, 3.0 * len(drawn))
    is_total = scores["segment"] == ""
    widths = _widths(scores)[:2]
    labels = list(dict.fromkeys(scores["label"].tolist()))
    for axes, (column, name) in zip(panels, drawn.items(), strict=True):
        for number, label in enumerate(labels):
            for width in widths:
                rows = scores.where(is_total & (scores["label"] == label) & (_width_s(scores) == width))
                name_of_curve = f"{label}, {whole_units(width * 1_000)}"
                _curve(axes, rows, column, f"C{number}", name_of_curve, is_thick=width == widths[-1])
        if column == "calibration_ratio":
            axes.axhline(1.0, color="grey", linewidth=0.8, linestyle="--")
        _mark(axes, story, is_named=axes is panels[0])
        axes.set_ylabel(name)
    panels[0].legend(loc="best", fontsize="small")
    panels[-1].set_xlabel(_EVENT_TIME)
    return png_of(figure)


def draw_segment(scores: ScoreColumns, segment: str) -> bytes:
    """Draw all figures by text of a segment, with a column of panels for each label."""
    widths = _widths(scores)
    width = widths[min(1, len(widths) - 1)]
    in_segment = scores.where((scores["segment"] == segment) & (_width_s(scores) == width))
    labels = list(dict.fromkeys(scores["label"].tolist()))
    texts = _texts(in_segment)
    drawn = _panels(scores)
    figure, panels = figure_of(len(drawn), len(labels), 2.7 * len(drawn))
    for row, (column, name) in enumerate(drawn.items()):
        for position, label in enumerate(labels):
            axes = panels[row * len(labels) + position]
            for number, text in enumerate(texts[:_TEXTS_MAX]):
                rows = in_segment.where((in_segment["label"] == label) & (in_segment["text"] == text))
                _curve(axes, rows, column, f"C{number}", _plain(text) or "(empty)", is_thick=True)
            if not row:
                axes.set_title(label, fontsize="medium")
            axes.set_ylabel(name if not position else "")
    cut = f", the {_TEXTS_MAX} with most rows of {len(texts)}" if len(texts) > _TEXTS_MAX else ""
    figure.suptitle(f"by {segment}{cut}; windows of {whole_units(width * 1_000)}", fontsize="medium")
    panels[0].legend(loc="best", fontsize="small")
    for axes in panels[-len(labels) :]:
        axes.set_xlabel(_EVENT_TIME)
    return png_of(figure)


def draw_freshness(story: Story) -> bytes:
    """Draw the age of each version when it became active, and of the newest event that it had learned."""
    figure, panels = figure_of(1, 1, 3.5)
    (axes,) = panels
    walls = _times([activation.wall_ms for activation in story.activations])
    # Points without a line: between two versions there are no values.
    axes.plot(walls, [activation.age_s for activation in story.activations], "o", label="since it was written")
    behind = [np.nan if activation.behind_s is None else activation.behind_s for activation in story.activations]
    if not np.isnan(behind).all():
        axes.plot(walls, behind, "o", label="since the newest event that it had learned")
    for what, colour in _COLOURS.items():
        times = _times([mark.wall_ms for mark in story.marks if mark.what == what])
        for number, time in enumerate(times):
            axes.axvline(time, color=colour, linewidth=0.8, alpha=0.7, label="" if number else what)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("age when activated (s)")
    axes.set_xlabel("wall time, UTC")
    axes.legend(loc="best", fontsize="small")
    return png_of(figure)


def figure_of(rows: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure, `height` inches high, and its panels over event time, row by row."""
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
    panels = list(figure.subplots(rows, columns, sharex=True, squeeze=False).flat)
    untyped: Any = dates
    for axes in panels:
        axes.xaxis.set_major_locator(untyped.AutoDateLocator(tz="UTC"))
        formatter: Any = ticker.NullFormatter()
        formatter.format_ticks = partial(_axis_labels, axes, untyped.num2date)
        axes.xaxis.set_major_formatter(formatter)
        axes.grid(alpha=0.3)
    return figure, panels


def _axis_labels(axes: Axes, date_of: Any, positions: Sequence[float]) -> list[str]:
    """Return the labels of an axis; its locator may return a time before the first visible one."""
    hidden = sum(position < axes.get_xlim()[0] for position in positions)
    return [""] * hidden + _stamps([date_of(position, tz="UTC") for position in positions[hidden:]])


def _stamps(times: Sequence[datetime]) -> list[str]:
    r"""Return labels for times; the first and each on a new day have the day below.

    Examples:
        >>> _stamps([datetime(2023, 11, 14, 23, 30), datetime(2023, 11, 14, 23, 45), datetime(2023, 11, 15)])
        ['23:30\n2023-11-14', '23:45', '00:00\n2023-11-15']
        >>> _stamps([datetime(2023, 11, 14), datetime(2023, 11, 16)])
        ['2023-11-14', '2023-11-16']
        >>> _stamps([datetime(2023, 11, 14, 1, 2, 3), datetime(2023, 11, 14, 1, 2, 3, 500_000)])
        ['01:02:03.0\n2023-11-14', '01:02:03.5']
    """
    days = [f"{time:%Y-%m-%d}" for time in times]
    if all((time.hour, time.minute, time.second, time.microsecond) == (0, 0, 0, 0) for time in times):
        return days
    has_fractions, has_seconds = (any(getattr(time, name) for time in times) for name in ("microsecond", "second"))
    form = "%H:%M:%S" if has_seconds or has_fractions else "%H:%M"
    clocks = [f"{time:{form}}" + (f".{time.microsecond // 100_000}" if has_fractions else "") for time in times]
    previous = ["", *days]
    return [f"{text}\n{day}" if day != last else text for text, day, last in zip(clocks, days, previous, strict=False)]


def png_of(figure: Figure) -> bytes:
    """Return a figure as PNG."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=_DPI)
    return out.getvalue()


def _curve(axes: Axes, scores: ScoreColumns, column: str, colour: str, name: str, *, is_thick: bool) -> None:
    """Draw a line through the middles of windows; incomplete windows are hollow."""
    if not len(scores):
        return
    values, times = scores[column], _times((scores["begin_ms"] + scores["end_ms"]) // 2)
    style: dict[str, Any] = (
        {"linewidth": 1.6, "marker": ".", "alpha": 0.9} if is_thick else {"linewidth": 0.7, "alpha": 0.5}
    )
    axes.plot(times, values, color=colour, label=name, **style)
    hollow = ~scores["is_complete"]
    if hollow.any():
        axes.scatter(times[hollow], values[hollow], s=22, facecolors="none", edgecolors=colour, linewidths=0.8)


def _mark(axes: Axes, story: Story, *, is_named: bool) -> None:
    for mark in story.marks:
        if mark.what not in _COLOURS or mark.event_ms is None:
            continue
        (time,), colour = _times([mark.event_ms]), _COLOURS[mark.what]
        axes.axvline(time, color=colour, linewidth=0.9, alpha=0.7)
        if is_named:
            style: dict[str, Any] = {"rotation": 90, "fontsize": 7, "va": "top", "ha": "right", "color": colour}
            axes.text(time, 0.98, f"{mark.what} {mark.version}", transform=axes.get_xaxis_transform(), **style)


def _panels(scores: ScoreColumns) -> dict[str, str]:
    """Return the figures that any label has."""
    found = {column: name for column, name in _PANELS.items() if not np.isnan(scores[column]).all()}
    return found or _PANELS


def _times(ms: npt.ArrayLike) -> npt.NDArray[np.datetime64]:
    return np.asarray(ms, np.int64).astype("datetime64[ms]")


def _width_s(scores: ScoreColumns) -> npt.NDArray[np.int64]:
    widths_s: npt.NDArray[np.int64] = (scores["end_ms"] - scores["begin_ms"]) // 1_000
    return widths_s


def _widths(scores: ScoreColumns) -> list[int]:
    """Return the widths of windows, shortest first."""
    return [int(width_s) for width_s in np.unique(_width_s(scores))]


def _texts(scores: ScoreColumns) -> Sequence[str]:
    """Return the texts of a segment, those with most rows first."""
    counts = Counter[str]()
    for text, rows in zip(scores["text"].tolist(), scores["rows"].tolist(), strict=True):
        counts[text] += rows
    return sorted(counts, key=lambda text: (-counts[text], text))


def _plain(text: str) -> str:
    """Escape a text for a legend: `$` begins mathematics, and a leading underscore hides a line."""
    escaped = text.replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped
