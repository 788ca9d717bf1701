"""Feed: replays a history, and has nodes score each request before its impression is written.

Each impression is written once, with the version that scored it and its scores.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from streamlearn.apps import AppFolder
from streamlearn.events import Producer
from streamlearn.events.columns import ids_of
from streamlearn.events.event import Columns
from streamlearn.load.node_scores import NodeScores, OnAnswer
from streamlearn.replay import History, Replayer, open_replay_topics
from streamlearn.replay.replayer import ReplayProgress, ReplayReport
from tools.demo.board import Board

__all__ = ["Feed"]

# Interval of progress notes, how many are kept, and how many of the newest a rate covers.
_NOTE_S, _NOTES_MAX, _RECENT = 0.1, 20_000, 50


class Feed:
    """A replay in a thread of its own; the constructor starts it.

    Args:
        folder: The application.
        history: The history to replay.
        nodes: gRPC addresses of the nodes, which take requests by turns.
        board: Receives the scores.
        speed: Event time per wall time.
        kept: How many versions may be kept for comparison.
        token: The token that the nodes expect.
        on_answer: Receives each request and the answer of the served version.

    Attributes:
        kept: Versions that score all requests too, from when they are set.
        last: The last version that each node answered with.
        unavailable: Rows that were scored with defaults, since the store of computed columns was away.
    """

    def __init__(
        self,
        folder: AppFolder,
        history: History,
        nodes: Sequence[str],
        board: Board,
        speed: float,
        *,
        kept: int = 1,
        token: str | None = None,
        on_answer: OnAnswer = lambda *_: None,
    ) -> None:
        self._on_answer, self.unavailable = on_answer, set[tuple[str, Any]]()
        self._folder, self._history, self._board, self._speed = folder, history, board, speed
        self._nodes = NodeScores(folder.app, nodes, token)
        self.kept: list[int | None] = [None] * kept
        self.last = [0] * len(nodes)
        self._progress: deque[tuple[float, ReplayProgress]] = deque(maxlen=_NOTES_MAX)
        self._event_ms, self._stop = history.begin_ms, threading.Event()
        self._report: ReplayReport | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="demo-feed", daemon=True)
        self._thread.start()

    @property
    def requests(self) -> int:
        """Requests so far."""
        return self._nodes.requests

    @property
    def repeated(self) -> int:
        """Requests that a second node was asked, since one did not answer."""
        return self._nodes.repeated

    @property
    def unanswered(self) -> int:
        """Requests without an answer."""
        return self._nodes.unanswered

    @property
    def refusal(self) -> str:
        """Why a node did not answer a request; empty if each was answered by the first node asked."""
        return self._nodes.refusal

    @property
    def report(self) -> ReplayReport | None:
        """The report, once everything is replayed.

        Raises:
            BaseException: The error that ended the replay.
        """
        if self._error is not None:
            raise self._error
        return self._report

    @property
    def event_ms(self) -> int:
        """The event time reached so far."""
        return self._event_ms

    @property
    def events_per_s(self) -> float:
        """Events per second over the last seconds."""
        recent = list(self._progress)[-_RECENT:]
        if len(recent) < 2:
            return 0.0
        (begin_s, first), (end_s, last) = recent[0], recent[-1]
        return (last.events - first.events) / max(end_s - begin_s, 1e-3)

    def wall_s(self, event_ms: int) -> float | None:
        """Return the monotonic time at which an event time was reached, to a tenth of a second; None before that."""
        notes = list(self._progress)
        at = int(np.searchsorted([progress.event_time_ms for _, progress in notes], event_ms))
        return notes[at][0] if at < len(notes) else None

    def close(self) -> None:
        """End the replay."""
        self._stop.set()
        self._thread.join()
        self._nodes.close()

    def _run(self) -> None:
        folder = self._folder
        try:
            with (
                open_replay_topics(folder) as (impressions, actions),
                Producer(folder, impressions=impressions, actions=actions) as producer,
            ):
                replayer = Replayer(self._history, producer, folder.settings.replay, scored=self._score)
                self._report = replayer.run(speed=self._speed, on_progress=self._note, stop=self._stop)
        # `report` raises it; a thread has no caller.
        except BaseException as error:
            self._error = error

    def _note(self, progress: ReplayProgress) -> None:
        now_s = time.monotonic()
        self._event_ms = progress.event_time_ms
        if not self._progress or now_s - self._progress[-1][0] >= _NOTE_S:
            self._progress.append((now_s, progress))

    def _score(self, columns: Columns, rows: int) -> Columns:
        """Return the columns with the scores of the nodes."""
        asked = self._nodes.encoded(columns)
        answers = self._nodes.ask(asked, on_answer=self._on_answer)
        for at in range(len(self.last)):
            answered = answers.version[at :: len(self.last)]
            self.last[at] = int(np.append(self.last[at], answered[answered > 0])[-1])
        labels = answers.scores.shape[1]
        kept = np.full((len(answers.scores), len(self.kept), labels), np.nan, np.float32)
        for at, version in enumerate(self.kept):
            if version is not None:
                kept[:, at] = self._nodes.ask(asked, str(version)).scores
        of_row = np.repeat(np.arange(rows), answers.candidates)
        requests = ids_of(columns, "request_id")
        items = ids_of(columns, f"items.{self._folder.app.features.item_id}")
        keys = [(requests[row], item) for row, item in zip(of_row.tolist(), items, strict=True)]
        self._board.shown(keys, columns["event_time_ms"][of_row], answers.version[of_row], answers.scores, kept)
        scored = self._nodes.scored(columns, answers)
        if "served_features" in scored:
            is_away = np.array([text == "unavailable" for text in ids_of(scored, "served_features")])
            self.unavailable.update(keys[row] for row in np.flatnonzero(is_away[of_row]).tolist())
        return scored
