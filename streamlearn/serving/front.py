"""Front: the lanes' view of waiting requests. The protocols that callers speak are native."""

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
from streamlearn.serving.lanes.lane_kind import Scorer, Work
from streamlearn.serving.lanes.lane_orders import TensorSpan
from streamlearn.serving.model_schema import ItemInputs, LibraryInputs, described
from streamlearn.serving.servable_versions import FrontVersions
from streamlearn.settings import ServingSettings
from streamlearn.settings.front import AllowanceSettings, FrontSettings

__all__ = ["Front", "FrontLimits"]

# How long a lane waits for work before it checks whether it must end.
_TAKE_S = 0.25


class FrontLimits(NamedTuple):
    """The limits of the native front."""

    lanes: int
    requests_max: int  # waiting requests
    candidates_max: int  # their candidates
    reserved_percent: int
    slack_us: int
    candidates_min: int  # 0: requests are not cut
    shown: int
    value_max: float
    short_percent: int
    by_cohort: bool
    deadline_us: int  # of a request that sets none
    deadline_us_max: int


class _Taken(NamedTuple):
    """Work that a lane took: the native front's handle, and the graphs of its version."""

    native: Any
    scorer: Scorer


class Front:
    """The `Source` of lanes: takes waiting requests from the native front and returns their scores.

    `tables` are the names of tables in the order in which rows are read. A front with `items` takes the columns of the
    towers, and finds items by the vectors of users that lanes return as scores. With a `library`, requests may
    leave out what it has of their candidates.
    """

    def __init__(
        self,
        app: App,
        tables: Sequence[str],
        serving: ServingSettings,
        settings: FrontSettings,
        allowance: AllowanceSettings,
        *,
        items: ItemInputs | None = None,
        library: LibraryInputs | None = None,
    ) -> None:
        sizes_max = {
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
        segments, of_class = [one.name for one in app.features.segments_of("user")], allowance.class_segment
        if of_class and of_class not in segments:
            message = f"allowance.class_segment names {of_class!r}, but requests have no segment of this name"
            known = f"name one of {', '.join(segments)}" if segments else "the features have none"
            raise ConfigError(message, help=f'{known}, or declare Segment({of_class!r}, "user")')
        features = app.features if items is None or app.towers is None else app.towers
        schema = described(features, app.labels, tables, sizes_max, of_class, items=items, library=library)
        # Models without sequences use one dummy length.
        self._lengths = list(serving.lengths) or [features.pack.user.sequence_length or 1]
        self._users, self._candidates = list(serving.users_buckets), list(serving.candidates_buckets)
        buckets = (self._users, self._candidates, self._lengths)
        limits = FrontLimits(
            serving.lanes, settings.requests_max, max(settings.waiting_candidates_max, settings.candidates_max),
            settings.reserved_percent, settings.slack_ms * 1_000,
            allowance.candidates_min, allowance.shown, allowance.value_max, allowance.short_history_percent,
            settings.shed_by_user,
            settings.deadline_ms * 1_000, settings.deadline_ms_max * 1_000,
        )  # fmt: skip
        self._is_shared = serving.lane_processes
        # A lane that restarts may still have its previous slab.
        slabs = 2 * serving.lanes if self._is_shared else None
        self.native = native.Front(
            schema, buckets, limits, settings.slabs_max, settings.shadow_requests_max, slabs_shared=slabs
        )
        self._ended = threading.Event()

    def connect(self, versions: FrontVersions, check: Callable[[int], object]) -> None:
        """Set the versions to answer with and `LaneKind.check`; call it before lanes take work."""
        self._versions, self._check = versions, check

    def set_costs(self, costs_us: dict[Bucket, float]) -> None:
        """Set the cost of each bucket, as the warm-up measured it."""
        costs = {(str(bucket.graph), bucket.rows, bucket.length or 1): cost for bucket, cost in costs_us.items()}

        def of(graph: str, sizes: Sequence[int]) -> list[list[float]]:
            # A graph that the model does not have costs next to nothing.
            return [[costs.get((graph, rows, length), 1e-3) for rows in sizes] for length in self._lengths]

        self.native.set_costs(of("user", self._users), of("score", self._candidates))

    def end(self) -> None:
        """Let lanes end. Waiting requests are still answered if a lane takes them before it checks."""
        self._ended.set()

    def take(self, lane: int) -> Work | None:
        """See `Source.take`."""
        while not self._ended.is_set():
            self._check(lane)
            batch = self.native.take(lane, _TAKE_S)
            if batch is None:
                continue
            answer = self._versions.of(batch.handle)
            if answer is None:
                self.native.fail(batch, "the version was given up")
                continue
            taken = _Taken(batch, answer.executables)
            if self._is_shared:
                user, (index, *item) = ([TensorSpan(*span) for span in side] for side in batch.places())
                return Work(answer.dense, user, index, item, taken)
            return Work(answer.dense, batch.user(), batch.user_index(), batch.item(), taken)
        return None

    def leave(self, lane: int) -> None:
        """See `Source.leave`."""
        self.native.leave(lane)

    def score(self, place: Any, work: Work) -> npt.NDArray[np.float32]:
        """Score work that was taken here with the graphs of its version."""
        taken: _Taken = work.note
        return taken.scorer.score(place, work)

    def give(self, work: Work, scores: npt.NDArray[np.float32]) -> None:
        """See `Source.give`."""
        self.native.give(work.note.native, scores)

    def fail(self, work: Work, error: Exception) -> None:
        """See `Source.fail`."""
        fail = self.native.lose if isinstance(error, LaneLost) else self.native.fail
        fail(work.note.native, f"{type(error).__name__}: {error}")
