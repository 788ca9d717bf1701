"""Which requests `streamlearn bench-serve` asks: made up, or taken from what an application recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamlearn.apps import AppFolder
    from streamlearn.events.event import Columns
    from streamlearn.serving.load.requests import Asked

__all__ = ["KINDS", "Wanted"]

KINDS = ("synthetic", "history", "topic")

# From how many impressions requests are drawn.
_IMPRESSIONS_MAX = 50_000
_CANDIDATES_MEAN = 36.0


@dataclass(frozen=True)
class Wanted:
    """The requests that are wanted.

    Attributes:
        kind: One of `KINDS`.
        count: How many.
        candidates_mean: How many candidates they have on average; None: as recorded, or 36 where nothing was.
        candidates_max: And at most.
        values: How many values a slot takes that is made up.
        seed: Of the random numbers that they are drawn from.
        options: Of the history.
    """

    kind: str
    count: int
    candidates_mean: float | None
    candidates_max: int
    values: int
    seed: int
    options: Mapping[str, str]

    def drawn(self, folder: AppFolder) -> Asked:
        """The requests, of an application.

        Raises:
            ConfigError: It has no history.
            DataError: Nothing was recorded.
            TopicMissing: It has no topic.
        """
        import numpy as np

        from streamlearn.serving.load.candidates import candidate_counts
        from streamlearn.serving.load.replayed_requests import recorded, refilled
        from streamlearn.serving.load.synthetic_requests import invented

        random = np.random.default_rng(self.seed)
        if self.kind == "synthetic":
            mean = self.candidates_mean or _CANDIDATES_MEAN
            counts = candidate_counts(mean, self.candidates_max, self.count, random)
            return invented(folder.app.features, counts, self.values, random)
        asked = recorded(self._impressions(folder), self.count, _IMPRESSIONS_MAX, random)
        if self.candidates_mean is None:
            return asked
        counts = candidate_counts(self.candidates_mean, self.candidates_max, len(asked), random)
        return refilled(asked, counts, random)

    def _impressions(self, folder: AppFolder) -> Iterator[Columns]:
        from streamlearn.events import EventDecoder
        from streamlearn.replay import load_history
        from streamlearn.serving.load.replayed_requests import of_history, of_topic

        if self.kind == "history":
            yield from of_history(load_history(folder.folder, self.options))
            return
        with folder.open_topic("impressions") as topic:
            yield from of_topic(topic, EventDecoder.of(folder))
