"""Feed: a history replayed by somebody who asks serving first, and then shows what it said.

Each impression is scored by a node before anything is known of what people will do, and is produced once, with the
version that scored it and its scores.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import AppFolder
from streamlearn.demo.board import Board, ids_of
from streamlearn.events import Producer
from streamlearn.events.event import Columns
from streamlearn.replay import History, Replayer, open_replay_topics
from streamlearn.replay.replayer import ReplayProgress, ReplayReport
from streamlearn.schemas.events import score_field
from streamlearn.serving.infer import InferAnswer
from streamlearn.serving.load.load_run import Load
from streamlearn.serving.load.requests import Asked
from streamlearn.serving.protobuf import nested

__all__ = ["Feed"]

_VERSION_FIELD = 2  # of a ModelInferRequest
# How often it is noted how far it is, for how many such notes, and of how many of them a rate is taken.
_ANSWER_S_MAX = 10.0
_NOTE_S, _NOTES_MAX, _RECENT = 0.1, 20_000, 50

Heard = Callable[[bytes, InferAnswer], None]
Scores = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]


class Feed:
    """Replays in a thread of its own, from when it is made.

    Args:
        folder: The application.
        history: What happens.
        nodes: Where they serve gRPC; requests take them by turns.
        board: Is told what was said.
        speed: Event time per wall time.
        kept: How many versions may be kept.
        heard: Told each request and what was answered with the version that is served.

    Attributes:
        kept: Versions that are asked about everything too, from when they are set.
        last: The last version that each node answered with.
        asked: Requests so far.
        unanswered: How many of them got no answer.
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
        heard: Heard = lambda *_: None,
    ) -> None:
        self._heard = heard
        self._folder, self._history, self._board, self._speed = folder, history, board, speed
        self._loads = [Load(one, connections=1) for one in nodes]
        self.kept: list[int | None] = [None] * kept
        self.last = [0] * len(nodes)
        self.asked = self.unanswered = 0
        self._progress: deque[tuple[float, ReplayProgress]] = deque(maxlen=_NOTES_MAX)
        self._event_ms, self._stop = history.begin_ms, threading.Event()
        self._report: ReplayReport | None = None
        self._error: BaseException | None = None
        self._pool = ThreadPoolExecutor(len(nodes), "demo-asks")
        self._thread = threading.Thread(target=self._run, name="demo-feed", daemon=True)
        self._thread.start()

    @property
    def report(self) -> ReplayReport | None:
        """What was replayed, once all was.

        Raises:
            BaseException: What ended it.
        """
        if self._error is not None:
            raise self._error
        return self._report

    @property
    def event_ms(self) -> int:
        """The event time that is reached."""
        return self._event_ms

    @property
    def events_per_s(self) -> float:
        """Events a second of the last seconds."""
        recent = list(self._progress)[-_RECENT:]
        if len(recent) < 2:
            return 0.0
        (begin_s, first), (end_s, last) = recent[0], recent[-1]
        return (last.events - first.events) / max(end_s - begin_s, 1e-3)

    def wall_s(self, event_ms: int) -> float | None:
        """When an event time was reached, by the monotonic clock, to a tenth of a second; None if it is not yet."""
        notes = list(self._progress)
        at = int(np.searchsorted([one.event_time_ms for _, one in notes], event_ms))
        return notes[at][0] if at < len(notes) else None

    def close(self) -> None:
        """End it."""
        self._stop.set()
        self._thread.join()
        self._pool.shutdown()

    def _run(self) -> None:
        folder = self._folder
        try:
            with (
                open_replay_topics(folder) as (impressions, actions),
                Producer(folder, impressions=impressions, actions=actions) as producer,
            ):
                replayer = Replayer(self._history, producer, folder.settings.replay, scored=self._scored)
                self._report = replayer.run(speed=self._speed, on_progress=self._note, stop=self._stop)
        # Whoever looks at the report is told; a thread has nobody else to tell.
        except BaseException as error:
            self._error = error

    def _note(self, progress: ReplayProgress) -> None:
        now_s = time.monotonic()
        self._event_ms = progress.event_time_ms
        if not self._progress or now_s - self._progress[-1][0] >= _NOTE_S:
            self._progress.append((now_s, progress))

    def _scored(self, columns: Columns, rows: int) -> Columns:
        """The columns, with what nodes say of them."""
        features, offsets = self._folder.app.features, columns["items[]"].astype(np.int64)
        asked = Asked(_within(columns, "user."), _within(columns, "items."), offsets)
        messages = asked.messages(features, self._folder.app.name)
        version, served = self._ask(messages, asked.candidates, self._heard)
        for at in range(len(self._loads)):
            answered = version[at :: len(self._loads)]
            self.last[at] = int(np.append(self.last[at], answered[answered > 0])[-1])
        kept = np.full((len(served), len(self.kept), served.shape[1]), np.nan, np.float32)
        for at, one in enumerate(self.kept):
            if one is not None:
                pin = nested(_VERSION_FIELD, str(one).encode())
                pinned = [message + pin for message in messages]
                _, kept[:, at] = self._ask(pinned, asked.candidates, lambda *_: None)
        of_row = np.repeat(np.arange(rows), asked.candidates)
        requests, items = ids_of(columns, "request_id"), ids_of(columns, f"items.{features.item_id}")
        keys = [(requests[row], item) for row, item in zip(of_row.tolist(), items, strict=True)]
        self._board.shown(keys, columns["event_time_ms"][of_row], version[of_row], served, kept)
        return {**columns, **self._columns(version, served)}

    def _columns(self, version: npt.NDArray[np.int64], served: npt.NDArray[np.float32]) -> dict[str, Any]:
        """What an impression says of who scored it."""
        found: dict[str, Any] = {"served_version": version, "served_version?": version > 0}
        for at, label in enumerate(self._folder.app.labels):
            scores, name = served[:, at], f"items.{score_field(label.name)}"
            found[name], found[f"{name}?"] = np.nan_to_num(scores), ~np.isnan(scores)
        return found

    def _ask(self, messages: list[bytes], candidates: npt.NDArray[np.int64], heard: Heard) -> Scores:
        """Which version answered each request, 0 for none, and the scores of all their candidates."""
        count = len(self._loads)
        found = self._pool.map(lambda at: self._loads[at].ask_all(messages[at::count], _ANSWER_S_MAX), range(count))
        answers: list[bytes | None] = [None] * len(messages)
        for at, some in enumerate(found):
            answers[at::count] = some
        labels = [label.name for label in self._folder.app.labels]
        version = np.zeros(len(messages), np.int64)
        scores = np.full((int(candidates.sum()), len(labels)), np.nan, np.float32)
        ends = np.cumsum(candidates).tolist()
        for row, (answer, end, length) in enumerate(zip(answers, ends, candidates.tolist(), strict=True)):
            if answer is None:
                continue
            said = InferAnswer.decode(answer)
            version[row] = int(said.version)
            heard(messages[row], said)
            for label, name in enumerate(labels):
                scores[end - length : end, label] = said.outputs[name].numbers
        self.asked += len(messages)
        self.unanswered += sum(one is None for one in answers)
        return version, scores


def _within(columns: Columns, prefix: str) -> dict[str, npt.NDArray[Any]]:
    return {name.removeprefix(prefix): column for name, column in columns.items() if name.startswith(prefix)}
