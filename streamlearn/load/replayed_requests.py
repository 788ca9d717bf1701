"""Replayed requests: users and candidates of real impressions, from an application's history or its topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from streamlearn.errors import DataError, TopicUnreachable
from streamlearn.events import EventDecoder, join_rows, rows_of, take_rows
from streamlearn.events.event import Columns
from streamlearn.load.requests import LoadRequests
from streamlearn.replay import History
from streamlearn.topics import Topic

__all__ = ["of_history", "of_topic", "recorded", "refilled", "requests_of"]

_SPAN_MS = 600_000
_READ_RECORDS, _READ_WAIT_MS = 64, 10_000


def recorded(
    parts: Iterable[Columns], requests: int, impressions_max: int, random: np.random.Generator
) -> LoadRequests:
    """Draw requests from the first `impressions_max` impressions in `parts`; none twice, so there may be fewer."""
    taken: list[Columns] = []
    count = 0
    for part in parts:
        rows = len(part["items[]"]) - 1
        taken.append(rows_of(part, 0, min(rows, impressions_max - count)))
        count += len(taken[-1]["items[]"]) - 1
        if count >= impressions_max:
            break
    if not count:
        message = "the topic has no impressions to make requests from"
        raise DataError(message, help="replay or record some first, or use synthetic requests")
    drawn = np.sort(random.choice(count, min(requests, count), replace=False)).astype(np.int64)
    return requests_of(take_rows(join_rows(taken), drawn))


def requests_of(impressions: Columns) -> LoadRequests:
    """Return the requests of impressions, with the candidates that were shown."""
    user, items = (_within(impressions, prefix) for prefix in ("user.", "items."))
    return LoadRequests(user, items, impressions["items[]"].astype(np.int64))


def refilled(asked: LoadRequests, counts: npt.NDArray[np.int64], random: np.random.Generator) -> LoadRequests:
    """Return requests of the same users with `counts` candidates.

    Candidates are drawn from those of all requests, so items that were shown often are drawn often.
    """
    offsets = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    rows = random.integers(0, int(asked.offsets[-1]), int(offsets[-1]))
    return LoadRequests(asked.user, take_rows(asked.item, rows), offsets)


def of_history(history: History) -> Iterator[Columns]:
    """Yield columns of a history's impressions."""
    for block in history.blocks(_SPAN_MS):
        if block.impressions_rows:
            yield block.impressions


def of_topic(topic: Topic, decoder: EventDecoder) -> Iterator[Columns]:
    """Yield columns of the impressions that a topic holds now, partition by partition; skip what cannot be decoded."""
    with topic.reader() as reader:
        for partition in range(topic.partitions):
            at, end = reader.earliest(partition), reader.end(partition)
            while at < end:
                batch = reader.read(partition, at, max_records=_READ_RECORDS, wait_ms=_READ_WAIT_MS)
                if batch.next_offset == at:
                    message = f"{reader.url} partition {partition} ends at {end}, but returns no records from {at} on"
                    raise TopicUnreachable(message, help="check its broker, then run this again")
                at = batch.next_offset
                impressions = decoder.decode(batch.values).impressions
                if len(impressions):
                    yield impressions.columns


def _within(columns: Columns, prefix: str) -> dict[str, npt.NDArray[np.generic]]:
    return {name.removeprefix(prefix): column for name, column in columns.items() if name.startswith(prefix)}
