"""The requests of `streamlearn bench-serve`: synthetic, or from recorded impressions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamlearn.apps import AppFolder
    from streamlearn.events.event import Columns
    from streamlearn.load.requests import LoadRequests

__all__ = ["KINDS", "draw_requests"]

KINDS = ("synthetic", "history", "topic")

# Most impressions that requests are drawn from.
_IMPRESSIONS_MAX = 50_000
_CANDIDATES_MEAN = 36.0


def draw_requests(
    folder: AppFolder,
    kind: str,
    count: int,
    *,
    candidates_mean: float | None,
    candidates_max: int,
    values: int,
    seed: int,
    options: Mapping[str, str],
) -> LoadRequests:
    """Draw `count` requests for an application from a source, one of `KINDS`; `options` are for the history.

    `candidates_mean` is None for as many as recorded, or 36 for synthetic requests, whose slots have as many different
    values as `values` says.

    Raises:
        ConfigError: The application has no history.
        DataError: No impressions were recorded.
        TopicMissing: The impressions topic does not exist.
    """
    import numpy as np

    from streamlearn.load.replayed_requests import recorded, refilled
    from streamlearn.load.requests import candidate_counts
    from streamlearn.load.synthetic_requests import invented

    random = np.random.default_rng(seed)
    if kind == "synthetic":
        counts = candidate_counts(candidates_mean or _CANDIDATES_MEAN, candidates_max, count, random)
        return invented(folder.app.features, counts, values, random)
    requests = recorded(_impressions(folder, kind, options), count, _IMPRESSIONS_MAX, random)
    if candidates_mean is None:
        return requests
    counts = candidate_counts(candidates_mean, candidates_max, len(requests), random)
    return refilled(requests, counts, random)


def _impressions(folder: AppFolder, kind: str, options: Mapping[str, str]) -> Iterator[Columns]:
    from streamlearn.events import EventDecoder
    from streamlearn.load.replayed_requests import of_history, of_topic
    from streamlearn.replay import load_history

    if kind == "history":
        yield from of_history(load_history(folder.folder, options))
        return
    with folder.open_topic("impressions") as topic:
        yield from of_topic(topic, EventDecoder.of(folder))
