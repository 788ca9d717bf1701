"""The requests of `streamlearn bench-serve`: synthetic, or from recorded impressions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamlearn.apps import AppFolder
    from streamlearn.events.event import Columns
    from streamlearn.load.requests import LoadRequests

__all__ = ["KINDS", "RequestSource"]

KINDS = ("synthetic", "history", "topic")

# Most impressions that requests are drawn from.
_IMPRESSIONS_MAX = 50_000
_CANDIDATES_MEAN = 36.0


@dataclass(frozen=True)
class RequestSource:
    """Where requests come from, and how many to draw. `kind` is one of `KINDS`; `options` are for the history."""

    kind: str
    count: int
    candidates_mean: float | None  # None: as recorded, or 36 for synthetic requests
    candidates_max: int
    values: int  # number of different values of a slot in synthetic requests
    seed: int
    options: Mapping[str, str]

    def draw(self, folder: AppFolder) -> LoadRequests:
        """Draw requests for an application.

        Raises:
            ConfigError: The application has no history.
            DataError: No impressions were recorded.
            TopicMissing: The impressions topic does not exist.
        """
        import numpy as np

        from streamlearn.load.replayed_requests import recorded, refilled
        from streamlearn.load.requests import candidate_counts
        from streamlearn.load.synthetic_requests import invented

        random = np.random.default_rng(self.seed)
        if self.kind == "synthetic":
            mean = self.candidates_mean or _CANDIDATES_MEAN
            counts = candidate_counts(mean, self.candidates_max, self.count, random)
            return invented(folder.app.features, counts, self.values, random)
        requests = recorded(self._impressions(folder), self.count, _IMPRESSIONS_MAX, random)
        if self.candidates_mean is None:
            return requests
        counts = candidate_counts(self.candidates_mean, self.candidates_max, len(requests), random)
        return refilled(requests, counts, random)

    def _impressions(self, folder: AppFolder) -> Iterator[Columns]:
        from streamlearn.events import EventDecoder
        from streamlearn.load.replayed_requests import of_history, of_topic
        from streamlearn.replay import load_history

        if self.kind == "history":
            yield from of_history(load_history(folder.folder, self.options))
            return
        with folder.open_topic("impressions") as topic:
            yield from of_topic(topic, EventDecoder.of(folder))
