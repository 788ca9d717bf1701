"""Front: where requests wait for lanes, as lanes see it. What callers say and hear is native."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.errors import ConfigError, LaneLost
from streamlearn.native import native
from streamlearn.serving.graphs.ladder import Bucket
from streamlearn.serving.lanes.lane_kind import Scorer
from streamlearn.serving.lanes.lane_orders import Lying
from streamlearn.serving.lanes.work import Work
from streamlearn.serving.model_schema import described
from streamlearn.serving.servable_versions import Answering
from streamlearn.settings import ServingSettings
from streamlearn.settings.front import FrontSettings

__all__ = ["Front"]

# How long a lane waits for work before it looks whether it is to end.
_TAKE_S = 0.25


class _Taken(NamedTuple):
    """Work that a lane took.

    Attributes:
        native: What the native front knows it by.
        scorer: The graphs of its version.
    """

    native: Any
    scorer: Scorer


class Front:
    """Requests that wait, and the lanes' side of them: a `Source`.

    Args:
        app: Whose requests.
        tables: Tables by name, in the order in which rows are read from them.
        serving: The shapes that TensorBatches are padded to, and how many lanes take them.
        settings: Bounds.

    Attributes:
        native: What the native core takes.
        answering: What versions are scored by; set before lanes take work.
        check: Called by lanes before they take work, and now and then; see `LaneKind.check`.
    """

    answering: Answering

    def __init__(self, app: App, tables: Sequence[str], serving: ServingSettings, settings: FrontSettings) -> None:
        largest = {
            "candidates_max": settings.candidates_max,
            "values_max": settings.values_max,
            "message_bytes_max": settings.message_bytes_max,
        }
        if settings.deadline_ms > settings.deadline_ms_max:
            message = (
                f"front.deadline_ms is {settings.deadline_ms}, "
                f"above front.deadline_ms_max of {settings.deadline_ms_max}"
            )
            raise ConfigError(
                message, help=f"set it to {settings.deadline_ms_max} at most, or raise front.deadline_ms_max"
            )
        text = described(app.features, [label.name for label in app.labels], tables, largest)
        length = app.features.pack.user.sequence_length
        # A model without histories has one length, at which nothing is looked.
        self._lengths = list(serving.lengths) or [length or 1]
        self._users, self._candidates = list(serving.users_buckets), list(serving.candidates_buckets)
        buckets = (self._users, self._candidates, self._lengths)
        limits = (
            serving.lanes,
            settings.requests_max,
            max(settings.waiting_candidates_max, settings.candidates_max),
            settings.reserved_percent,
            settings.slack_ms * 1_000,
            settings.degraded_candidates,
        )
        waits_us = (settings.deadline_ms * 1_000, settings.deadline_ms_max * 1_000)
        self._is_shared = serving.lane_processes
        # A lane that begins anew may have a slab yet that it had before.
        slabs = 2 * serving.lanes if self._is_shared else None
        self.native = native.Front(
            text, buckets, limits, waits_us, settings.slabs_max, settings.shadow_requests_max, slabs_shared=slabs
        )
        self.check: Callable[[int], object] = lambda _: None
        self._ended = threading.Event()

    def set_costs(self, costs_us: dict[Bucket, float]) -> None:
        """Say what warm-up measured of each bucket."""
        named = {(str(one.graph), one.rows, one.length or 1): cost for one, cost in costs_us.items()}

        def of(graph: str, sizes: Sequence[int]) -> list[list[float]]:
            # A graph that is not there costs next to nothing.
            return [[named.get((graph, rows, length), 1e-3) for rows in sizes] for length in self._lengths]

        self.native.set_costs(of("user", self._users), of("score", self._candidates))

    def end(self) -> None:
        """Let lanes end; what waits is still answered if they take it before they look."""
        self._ended.set()

    def take(self, lane: int) -> Work | None:
        """See `Source.take`."""
        while not self._ended.is_set():
            self.check(lane)
            given = self.native.take(lane, _TAKE_S)
            if given is None:
                continue
            answer = self.answering.of(given.handle)
            if answer is None:
                self.native.fail(given, "the version was given up")
                continue
            taken = _Taken(given, answer.executables)
            if self._is_shared:
                user, (index, *item) = ([Lying(*one) for one in side] for side in given.places())
                return Work(answer.dense, user, index, item, taken)
            return Work(answer.dense, given.user(), given.user_index(), given.item(), taken)
        return None

    def leave(self, lane: int) -> None:
        """See `Source.leave`."""
        self.native.leave(lane)

    def score(self, place: Any, work: Work) -> npt.NDArray[np.float32]:
        """The scores of work that was taken here, by the graphs of its version."""
        taken: _Taken = work.note
        return taken.scorer.score(place, work)

    def give(self, work: Work, scores: npt.NDArray[np.float32]) -> None:
        """See `Source.give`."""
        self.native.give(work.note.native, scores)

    def fail(self, work: Work, error: Exception) -> None:
        """See `Source.fail`."""
        tell = self.native.lose if isinstance(error, LaneLost) else self.native.fail
        tell(work.note.native, f"{type(error).__name__}: {error}")
