"""Served AUC: a recorded week through the loop, each request scored before anybody has done anything about it.

The same requests are put to the version of now, to that of the last midnight, and to that at which learning would have
been frozen; all are answered by the same node, from what it retains.
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
# After so many whole days learning would have been frozen; those after them are compared.
FROZEN_DAYS = 3
_FROZEN, _DAILY = 0, 1
_SECONDS = 200.0


def served(place: Path, note: Callable[[str], None], seconds: float = _SECONDS) -> dict[str, float]:
    """Replay the week, and compare.

    Args:
        place: A folder for all of it.
        note: Told how far it is.
        seconds: How long it takes.

    Raises:
        StreamlearnError: The loop ended, or did not answer.
    """
    history = load_history(_EXAMPLE)
    begin_ms, end_ms = span_of(history)
    speed = (end_ms - begin_ms) / 1_000 / seconds
    # A shard more and a judge that refuses now and then would say nothing here.
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
                note(f"{len(board):,} rows were served; version {version} is that of day {day}")
            while feed.report is None:
                loop.check()
                time.sleep(_LOOK_S)
        rows = board.rows()
        interval_s = folder.settings.publisher.publish_interval_s * speed
    figures = served_figures(rows.where(rows.event_ms >= nights[FROZEN_DAYS]))
    return figures | {"served_interval_s": interval_s, "served_unanswered": float(feed.unanswered)}


def midnights_of(begin_ms: int, end_ms: int) -> Sequence[int]:
    """The midnights within a stretch of event time, China's time.

    Examples:
        >>> midnights_of(0, 2 * 86_400_000)
        [57600000, 144000000]
    """
    first = -(-(begin_ms + _ZONE_MS) // _DAY_MS) * _DAY_MS - _ZONE_MS
    return list(range(first, end_ms, _DAY_MS))


def served_figures(rows: Rows) -> dict[str, float]:
    """The AUC of the first label by the version of now, of the last midnight, and the frozen one; of the same rows."""
    both = rows.compared
    kept = {"served_auc": None, "served_auc_frozen": _FROZEN, "served_auc_daily": _DAILY}
    found = {name: both.auc(0, one) for name, one in kept.items()}
    return {name: value for name, value in found.items() if value is not None} | {"served_rows": float(len(both))}
