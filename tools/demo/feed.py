"""Feed: replays a history, and has nodes score each request before its impression is written.

Each impression is written once, with the version that scored it and its scores.
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
from streamlearn.events import Producer
from streamlearn.events.event import Columns
from streamlearn.load.load_run import Load
from streamlearn.load.requests import LoadRequests
from streamlearn.replay import History, Replayer, open_replay_topics
from streamlearn.replay.replayer import ReplayProgress, ReplayReport
from streamlearn.schemas.events import score_field
from streamlearn.serving.infer import InferAnswer
from streamlearn.serving.protobuf import nested
from tools.demo.board import Board, ids_of

__all__ = ["Feed"]

_VERSION_FIELD = 2  # of a ModelInferRequest
_ANSWER_S_MAX = 10.0
# Interval of progress notes, how many are kept, and how many of the newest a rate covers.
_NOTE_S, _NOTES_MAX, _RECENT = 0.1, 20_000, 50

OnAnswer = Callable[[bytes, InferAnswer], None]
Scores = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]


class Feed:
    """A replay in a thread of its own; the constructor starts it.

    Args:
        folder: The application.
        history: The history to replay.
        nodes: gRPC addresses of the nodes, which take requests by turns.
        board: Receives the scores.
        speed: Event time per wall time.
        kept: How many versions may be kept for comparison.
        on_answer: Receives each request and the answer of the served version.

    Attributes:
        kept: Versions that score all requests too, from when they are set.
        last: The last version that each node answered with.
        requests: Requests so far.
        unanswered: Requests without an answer.
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
        on_answer: OnAnswer = lambda *_: None,
    ) -> None:
        self._on_answer = on_answer
        self._folder, self._history, self._board, self._speed = folder, history, board, speed
        self._loads = [Load(address, connections=1) for address in nodes]
        self.kept: list[int | None] = [None] * kept
        self.last = [0] * len(nodes)
        self.requests = self.unanswered = 0
        self._progress: deque[tuple[float, ReplayProgress]] = deque(maxlen=_NOTES_MAX)
        self._event_ms, self._stop = history.begin_ms, threading.Event()
        self._report: ReplayReport | None = None
        self._error: BaseException | None = None
        self._pool = ThreadPoolExecutor(len(nodes), "demo-asks")
        self._thread = threading.Thread(target=self._run, name="demo-feed", daemon=True)
        self._thread.start()

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
        self._pool.shutdown()

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
        features, offsets = self._folder.app.features, columns["items[]"].astype(np.int64)
        asked = LoadRequests(_within(columns, "user."), _within(columns, "items."), offsets)
        messages = asked.messages(features, self._folder.app.name)
        version, served = self._ask(messages, asked.candidates, self._on_answer)
        for at in range(len(self._loads)):
            answered = version[at :: len(self._loads)]
            self.last[at] = int(np.append(self.last[at], answered[answered > 0])[-1])
        kept = np.full((len(served), len(self.kept), served.shape[1]), np.nan, np.float32)
        for at, kept_version in enumerate(self.kept):
            if kept_version is not None:
                pin = nested(_VERSION_FIELD, str(kept_version).encode())
                pinned = [message + pin for message in messages]
                _, kept[:, at] = self._ask(pinned, asked.candidates, lambda *_: None)
        of_row = np.repeat(np.arange(rows), asked.candidates)
        requests, items = ids_of(columns, "request_id"), ids_of(columns, f"items.{features.item_id}")
        keys = [(requests[row], item) for row, item in zip(of_row.tolist(), items, strict=True)]
        self._board.shown(keys, columns["event_time_ms"][of_row], version[of_row], served, kept)
        return {**columns, **self._columns(version, served)}

    def _columns(self, version: npt.NDArray[np.int64], served: npt.NDArray[np.float32]) -> dict[str, Any]:
        """Return the columns of an impression that name the version and the scores."""
        served_columns: dict[str, Any] = {"served_version": version, "served_version?": version > 0}
        for at, label in enumerate(self._folder.app.labels):
            scores, name = served[:, at], f"items.{score_field(label.name)}"
            served_columns[name], served_columns[f"{name}?"] = np.nan_to_num(scores), ~np.isnan(scores)
        return served_columns

    def _ask(self, messages: list[bytes], candidates: npt.NDArray[np.int64], on_answer: OnAnswer) -> Scores:
        """Return the version that answered each request, 0 for none, and the scores of all candidates."""
        count = len(self._loads)
        by_node = self._pool.map(lambda at: self._loads[at].ask_all(messages[at::count], _ANSWER_S_MAX), range(count))
        answers: list[bytes | None] = [None] * len(messages)
        for at, node_answers in enumerate(by_node):
            answers[at::count] = node_answers
        labels = [label.name for label in self._folder.app.labels]
        version = np.zeros(len(messages), np.int64)
        scores = np.full((int(candidates.sum()), len(labels)), np.nan, np.float32)
        ends = np.cumsum(candidates).tolist()
        for row, (answer, end, length) in enumerate(zip(answers, ends, candidates.tolist(), strict=True)):
            if answer is None:
                continue
            decoded = InferAnswer.decode(answer)
            version[row] = int(decoded.version)
            on_answer(messages[row], decoded)
            for label, name in enumerate(labels):
                scores[end - length : end, label] = decoded.outputs[name].numbers
        self.requests += len(messages)
        self.unanswered += sum(answer is None for answer in answers)
        return version, scores


def _within(columns: Columns, prefix: str) -> dict[str, npt.NDArray[Any]]:
    return {name.removeprefix(prefix): column for name, column in columns.items() if name.startswith(prefix)}
