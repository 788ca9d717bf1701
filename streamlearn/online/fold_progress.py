"""FoldProgress: how far an application's interactions are folded, for a process that does not fold."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from msgspec import structs

from streamlearn.apps import AppFolder
from streamlearn.errors import ServiceError, StreamlearnError
from streamlearn.features import Entity
from streamlearn.online.state_store import Standing, StateGroup, StateStore, open_state_store
from streamlearn.topics import open_topic

__all__ = ["FoldProgress", "fold_facts", "read_progress"]

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class FoldProgress:
    """How far interactions are folded into the states of one entity.

    Attributes:
        entity: The entity.
        group: The states that are read; None before any.
        partitions: The number of partitions of the topic.
        claimed: The number of those that a process ever began to fold.
        messages: The number of messages in the topic.
        behind: The number of those that are not folded yet.
        newest_ms: The event time of the newest interaction that was folded; 0 before any.
    """

    entity: Entity
    group: StateGroup | None
    partitions: int
    claimed: int
    messages: int
    behind: int
    newest_ms: int


def read_progress(folder: AppFolder, store: StateStore) -> list[FoldProgress]:
    """Return the progress of each entity.

    Raises `StatesUnreachable`; then `TopicError`; or `ServiceError` if one takes longer than `topics.reach_s` for all.
    """
    access, reach_s, stored = folder.access, folder.settings.topics.reach_s, []
    until_s = time.monotonic() + reach_s
    for entity in folder.app.features.entities:
        group = store.current(folder.app.samples_name, entity)
        calls = ((number, store.standing(group, number)) for number in range(group.partitions)) if group else ()
        stored.append((entity, group, _in_time(calls, until_s, store.url)))
    # By default, one request may take longer than all.
    access = replace(access, request_timeout_ms=min(access.request_timeout_ms, access.unreachable_after_ms))
    with open_topic(folder.topic_url("interactions"), access) as topic, topic.reader() as reader:
        ends = ((reader.earliest(number), reader.end(number)) for number in range(topic.partitions))
        spans = _in_time(ends, time.monotonic() + reach_s, reader.url)
        return [_progress(*known, reader.topic_id, spans) for known in stored]


def fold_facts(folder: AppFolder) -> dict[str, Any] | None:
    """Return the store and the progress of all entities together, or why it is unknown; None if nothing is computed."""
    if not folder.app.features.entities:
        return None
    reach_s = min(folder.settings.features.reach_s, folder.settings.topics.reach_s)
    facts = {"store": "", "error": "", "behind": 0, "newest_ms": 0}
    try:
        with open_state_store(folder, structs.replace(folder.settings.features, reach_s=reach_s)) as store:
            facts["store"] = store.url
            found = read_progress(folder, store)
    except StreamlearnError as error:
        return facts | {"error": error.message}
    return facts | {"behind": sum(one.behind for one in found), "newest_ms": max(one.newest_ms for one in found)}


def _in_time(calls: Iterable[_Answer], until_s: float, url: str) -> list[_Answer]:
    answers = []
    for answer in calls:
        answers.append(answer)
        if time.monotonic() > until_s:
            message = f"{url} is slow: not all partitions were read within topics.reach_s"
            raise ServiceError(message, help="see why it is slow")
    return answers


def _progress(
    entity: Entity,
    group: StateGroup | None,
    standings: Sequence[tuple[int, Standing | None]],
    topic_id: str,
    spans: Sequence[tuple[int, int]],
) -> FoldProgress:
    # A standing of a topic that was replaced says nothing; one that was only claimed names no topic yet.
    claimed = {number: one for number, one in standings if one is not None and one.topic_id in ("", topic_id)}
    begins = [max(first, claimed.get(number, Standing()).position) for number, (first, _) in enumerate(spans)]
    messages = sum(end - first for first, end in spans)
    behind = sum(max(0, end - begin) for begin, (_, end) in zip(begins, spans, strict=True))
    newest_ms = max((standing.newest_ms for standing in claimed.values()), default=0)
    return FoldProgress(entity, group, len(spans), len(claimed), messages, behind, newest_ms)
