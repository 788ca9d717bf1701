"""The figure of a demo: how well serving told what people would do, and which version answered. It reads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from streamlearn.cli.report.figures import figure_of, png_of

if TYPE_CHECKING:
    from streamlearn.demo.board import Rows

__all__ = ["draw_demo"]

_ROWS = 2_000
_COLOURS = {"poisoned": "tab:red", "forced": "tab:red", "rolled back": "tab:purple", "released": "tab:green"}


def draw_demo(rows: Rows, marks: Sequence[tuple[float, int, str]], frozen: int) -> bytes:
    """Curves over event time.

    Args:
        rows: Served scores and people's actions.
        marks: Events of the demo: seconds, event time and name.
        frozen: The version that was kept.
    """
    figure, (upper, lower) = figure_of(2, 1, 7.0)
    parts = [rows.where(slice(at, at + _ROWS)) for at in range(0, len(rows) - _ROWS + 1, _ROWS)]
    times = np.array([int(one.event_ms.mean()) for one in parts], np.int64).astype("datetime64[ms]")
    for said, kept, colour in (("served", None, "C0"), (f"version {frozen}, kept", 0, "C1")):
        values = [one.auc(0, kept) for one in parts]
        upper.plot(times, [np.nan if one is None else one for one in values], color=colour, marker=".", label=said)
    upper.set_ylabel(f"AUC of {_ROWS:,} rows")
    answered = rows.where(rows.version > 0)
    lower.plot(answered.event_ms.astype("datetime64[ms]"), answered.version, ".", markersize=2, color="C0")
    lower.set_ylabel("version that answered")
    lower.set_xlabel("event time of requests, UTC")
    for _, event_ms, what in marks:
        (place,) = np.array([event_ms], np.int64).astype("datetime64[ms]")
        colour = _COLOURS.get(what, "tab:grey")
        for axes in (upper, lower):
            axes.axvline(place, color=colour, linewidth=0.9, alpha=0.7)
        where = upper.get_xaxis_transform()
        upper.text(place, 0.02, what, rotation=90, fontsize=7, va="bottom", ha="right", transform=where, color=colour)
    upper.legend(loc="upper left", fontsize="small")
    return png_of(figure)
