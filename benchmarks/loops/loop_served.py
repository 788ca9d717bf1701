"""Served AUC: a recorded week through the loop, in which each request is scored before its actions happen.

The current version, the version of the last midnight, and a version frozen earlier score the same requests. The same
node answers with all of them, from its retained versions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from streamlearn.apps import load_app
from streamlearn.replay import load_history
from tools.demo import Board, Feed, Loop, Witness
from tools.demo.board import Rows
from tools.demo.place import one_machine_settings
from tools.demo.poison import span_of

__all__ = ["FROZEN_DAYS", "midnights_of", "served", "served_figures"]

_EXAMPLE = Path(__file__).parents[2] / "examples" / "kuairand"
_DAY_MS, _ZONE_MS, _LOOK_S = 86_400_000, 8 * 3_600_000, 0.05
# The frozen version is that after this number of whole days. The comparison is on the days after them.
FROZEN_DAYS = 3
_FROZEN, _DAILY = 0, 1
_SECONDS = 200.0


def served(place: Path, note: Callable[[str], None], seconds: float = _SECONDS) -> dict[str, float]:
    """Replay the week and return the AUC of each version.

    Args:
        place: A folder for all files.
        note: Called with lines of progress.
        seconds: Duration of the replay.

    Raises:
        StreamlearnError: The loop ended, or did not answer.
    """
    history = load_history(_EXAMPLE)
    begin_ms, end_ms = span_of(history)
    speed = (end_ms - begin_ms) / 1_000 / seconds
    # The judge must not reject versions: it would change what is measured.
    changes = (*one_machine_settings(place, speed), "judge.scored_rows_min=1099511627776")
    folder = load_app(_EXAMPLE, changes)
    board, nights = Board(folder.app, 2), midnights_of(begin_ms, end_ms)
    with closing(Loop(folder, changes, place, 1, 0)) as loop:
        loop.wait_up()
        with closing(Feed(folder, Witness(history, board.did), loop.nodes, board, speed, kept=2)) as feed:
            for day, night_ms in enumerate(nights):
                loop.wait(lambda: feed.event_ms >= night_ms or feed.report is not None, "a day", seconds * 2)  # noqa: B023
                active = loop.model.pointer.active
                version = None if active is None else active.version
                feed.kept[_DAILY] = version
                if day == FROZEN_DAYS:
                    feed.kept[_FROZEN] = version
                note(f"{len(board):,} rows were served; day {day} begins with version {version}")
            while feed.report is None:
                loop.check()
                time.sleep(_LOOK_S)
        rows = board.rows()
        interval_s = folder.settings.publisher.publish_interval_s * speed
    figures = served_figures(rows.where(rows.event_ms >= nights[FROZEN_DAYS]))
    return figures | {"served_interval_s": interval_s, "served_unanswered": float(feed.unanswered)}


def midnights_of(begin_ms: int, end_ms: int) -> Sequence[int]:
    """Return the midnights in China within a period of event time.

    Examples:
        >>> midnights_of(0, 2 * 86_400_000)
        [57600000, 144000000]
    """
    first = -(-(begin_ms + _ZONE_MS) // _DAY_MS) * _DAY_MS - _ZONE_MS
    return list(range(first, end_ms, _DAY_MS))


def served_figures(rows: Rows) -> dict[str, float]:
    """Return the AUC of the first label by the current, daily and frozen versions, on the same rows."""
    compared = rows.compared
    kept = {"served_auc": None, "served_auc_frozen": _FROZEN, "served_auc_daily": _DAILY}
    figures = {name: compared.auc(0, version) for name, version in kept.items()} | {"served_rows": float(len(compared))}
    return {name: value for name, value in figures.items() if value is not None}
