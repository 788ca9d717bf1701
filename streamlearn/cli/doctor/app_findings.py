"""Checks of one application: its declaration, the schemas its settings name, its topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from streamlearn.apps import TOPICS, AppFolder, load_app
from streamlearn.cli.doctor.check_result import Finding
from streamlearn.errors import StreamlearnError, TopicMissing, TopicUnreachable
from streamlearn.events import EventDecoder
from streamlearn.topics import open_topic
from streamlearn.topics.settings import Durability

__all__ = ["app_findings", "durability_findings"]

# Shorter than a component's own patience: whoever asks is waiting, and an answer is wanted even if it is no.
REACH_S = 3.0
_MAKES = "streamlearn topics APP --create PARTITIONS creates all missing topics"


def app_findings(app: Path, overrides: list[str]) -> Iterator[Finding]:
    """Findings on an application.

    Args:
        app: Its folder.
        overrides: Settings laid over its app.toml.
    """
    try:
        folder = load_app(app, [f"topics.reach_s={REACH_S:g}", *overrides])
    except StreamlearnError as error:
        yield _wrong(f"app {app}", error)
        return
    fingerprints = f"model {folder.app.model_fingerprint}, samples {folder.app.samples_fingerprint}"
    yield Finding(f"app {folder.app.name}", "ok", fingerprints)
    yield _schemas(folder)
    yield from _topics(folder)


def _dead_letters(folder: AppFolder) -> Iterator[Finding]:
    from streamlearn.ingest.output.progress_log import DeadShare

    share_max = folder.settings.ingest.dead_share_max
    with closing(DeadShare(folder)) as dead_share:
        share = dead_share()
    if share > share_max:
        detail = f"{share:.1%} of ingest's recent events became dead letters; at most {share_max:.1%} is allowed"
        hint = "streamlearn peek APP dead_letters shows each one with its origin and reason"
        yield Finding("dead letters", "wrong", detail, hint)


def _wrong(what: str, error: StreamlearnError) -> Finding:
    return Finding(what, "wrong", error.message, error.help)


def _schemas(folder: AppFolder) -> Finding:
    try:
        EventDecoder.of(folder)
    except StreamlearnError as error:
        return _wrong("event schemas", error)
    topics = folder.settings.topics
    named = f"{len(topics.old_schemas)} older schemas and {len(topics.schema_ids)} of a schema registry are configured"
    return Finding("event schemas", "ok", f"current ones are valid, {named}")


def _topics(folder: AppFolder) -> Iterator[Finding]:
    # One request may by default take longer than all the patience there is here.
    access = replace(folder.access, request_timeout_ms=folder.access.unreachable_after_ms)
    silent: set[str] = set()
    partitions: dict[str, int] = {}
    missing: list[str] = []
    durable: dict[str, Durability | None] = {}
    for name in TOPICS:
        what, place = f"topic {name}", folder.topic_url(name).rpartition("/")[0]
        if place in silent:
            yield Finding(what, "wrong", f"not checked: {place} did not answer")
            continue
        try:
            with open_topic(folder.topic_url(name), access) as topic:
                partitions[name] = topic.partitions
                yield Finding(what, "ok", f"{topic.url}, {topic.partitions} partitions")
                durable[name] = topic.durability()
        except TopicMissing as error:
            missing.append(name)
            yield Finding(what, "missing", error.message, _MAKES)
        except StreamlearnError as error:
            if isinstance(error, TopicUnreachable):
                silent.add(place)
            yield _wrong(what, error)
    if missing and partitions:
        detail = f"{', '.join(partitions)} exist, but not {', '.join(missing)}; all topics are needed"
        yield Finding("topics", "wrong", detail, _MAKES)
    if "progress" in partitions:
        yield from _dead_letters(folder)
    shown, done = partitions.get("impressions"), partitions.get("actions")
    if shown and done and shown != done:
        detail = f"impressions has {shown}, actions has {done}"
        hint = (
            "both topics need the same number, because requests and actions are joined by partition: recreate one "
            "of them"
        )
        yield Finding("partitions", "wrong", detail, hint)
    yield from durability_findings(durable)


def durability_findings(durable: Mapping[str, Durability | None]) -> Iterator[Finding]:
    """Findings on topics that lose records with a broker.

    Args:
        durable: By topic, what its brokers say; None where there are none.
    """
    kept = {name: facts for name, facts in durable.items() if facts is not None}
    if unclean := [name for name, facts in kept.items() if facts.unclean]:
        detail = f"unclean.leader.election.enable=true for {', '.join(unclean)}: a leader election may lose records"
        yield Finding("unclean elections", "wrong", detail, "set it to false for each with kafka-configs --alter")
    if thin := [name for name, facts in kept.items() if facts.is_thin]:
        detail = f"min.insync.replicas=1 for {', '.join(thin)}: acknowledged records may exist on one broker only"
        yield Finding("replicas in sync", "wrong", detail, "set it to 2 for each with kafka-configs --alter")
    if single := [name for name, facts in kept.items() if facts.replicas == 1]:
        detail = f"1 for {', '.join(single)}: if the broker loses its disk, the records are lost"
        yield Finding("replicas", "missing", detail, "enough for tests; use 3 in production")
