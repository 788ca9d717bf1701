"""Figure of a demo: the AUC of the served scores over time, and the version that answered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamlearn.cli.report.figures import figure_of, png_of
from tools.demo.board import Rows

__all__ = ["draw_demo"]

_ROWS = 2_000
_COLOURS = {"poisoned": "tab:red", "forced": "tab:red", "rolled back": "tab:purple", "released": "tab:green"}


def draw_demo(rows: Rows, marks: Sequence[tuple[float, int, str]], frozen: int) -> bytes:
    """Return a PNG of the curves over event time.

    Args:
        rows: Served scores and users' actions.
        marks: Events of the demo: seconds, event time and name.
        frozen: The version kept for comparison.
    """
    figure, (upper, lower) = figure_of(2, 1, 7.0)
    parts = [rows.where(slice(at, at + _ROWS)) for at in range(0, len(rows) - _ROWS + 1, _ROWS)]
    times = np.array([int(part.event_ms.mean()) for part in parts], np.int64).astype("datetime64[ms]")
    for name, kept, colour in (("served", None, "C0"), (f"version {frozen}, kept", 0, "C1")):
        values = [part.auc(0, kept) for part in parts]
        upper.plot(times, [np.nan if auc is None else auc for auc in values], color=colour, marker=".", label=name)
    upper.set_ylabel(f"AUC of {_ROWS:,} rows")
    answered = rows.where(rows.version > 0)
    lower.plot(answered.event_ms.astype("datetime64[ms]"), answered.version, ".", markersize=2, color="C0")
    lower.set_ylabel("version that answered")
    lower.set_xlabel("event time of requests, UTC")
    for _, event_ms, name in marks:
        (time,) = np.array([event_ms], np.int64).astype("datetime64[ms]")
        colour = _COLOURS.get(name, "tab:grey")
        for axes in (upper, lower):
            axes.axvline(time, color=colour, linewidth=0.9, alpha=0.7)
        where = upper.get_xaxis_transform()
        upper.text(time, 0.02, name, rotation=90, fontsize=7, va="bottom", ha="right", transform=where, color=colour)
    upper.legend(loc="upper left", fontsize="small")
    return png_of(figure)
