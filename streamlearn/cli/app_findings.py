"""Checks of one application: its declaration, the schemas its settings name, its topics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from streamlearn.apps import TOPICS, AppFolder, load_app
from streamlearn.cli.finding import Finding
from streamlearn.errors import StreamlearnError, TopicMissing, TopicUnreachable
from streamlearn.events import EventDecoder
from streamlearn.topics import open_topic

__all__ = ["app_findings"]

# Shorter than a component's own patience: whoever asks is waiting, and an answer is wanted even if it is no.
REACH_S = 3.0
_MAKES = "streamlearn topics APP --create PARTITIONS makes all that are missing"


def app_findings(app: Path, overrides: list[str]) -> Iterator[Finding]:
    """What there is to say of an application.

    Args:
        app: Its folder.
        overrides: Settings laid over its app.toml.
    """
    try:
        folder = load_app(app, [f"topics.reach_s={REACH_S:g}", *overrides])
    except StreamlearnError as error:
        yield _wrong(f"app {app}", error)
        return
    yield Finding(f"app {folder.app.name}", "ok", f"features {folder.app.features.fingerprint}")
    yield _schemas(folder)
    yield from _topics(folder)


def _wrong(what: str, error: StreamlearnError) -> Finding:
    return Finding(what, "wrong", error.message, error.help)


def _schemas(folder: AppFolder) -> Finding:
    try:
        EventDecoder.of(folder)
    except StreamlearnError as error:
        return _wrong("event schemas", error)
    topics = folder.settings.topics
    named = f"{len(topics.old_schemas)} older and {len(topics.schema_ids)} of a schema registry are named"
    return Finding("event schemas", "ok", f"today's are read, {named}")


def _topics(folder: AppFolder) -> Iterator[Finding]:
    # One request may by default take longer than all the patience there is here.
    access = replace(folder.access, request_timeout_ms=folder.access.unreachable_after_ms)
    silent: set[str] = set()
    partitions: dict[str, int] = {}
    missing: list[str] = []
    for name in TOPICS:
        what, place = f"topic {name}", folder.topic_url(name).rpartition("/")[0]
        if place in silent:
            yield Finding(what, "wrong", f"not tried: {place} did not answer")
            continue
        try:
            with open_topic(folder.topic_url(name), access) as topic:
                partitions[name] = topic.partitions
                yield Finding(what, "ok", f"{topic.url}, {topic.partitions} partitions")
        except TopicMissing as error:
            missing.append(name)
            yield Finding(what, "missing", error.message, _MAKES)
        except StreamlearnError as error:
            if isinstance(error, TopicUnreachable):
                silent.add(place)
            yield _wrong(what, error)
    if missing and partitions:
        detail = f"there is {', '.join(partitions)}, and not {', '.join(missing)}: nothing runs without all of them"
        yield Finding("topics", "wrong", detail, _MAKES)
    shown, done = partitions.get("impressions"), partitions.get("actions")
    if shown and done and shown != done:
        detail = f"impressions has {shown}, actions has {done}"
        hint = "a request and its actions meet by the partition: make one of the two anew with the other's number"
        yield Finding("partitions", "wrong", detail, hint)
