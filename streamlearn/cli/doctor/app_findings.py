"""Checks of one application: its declaration, its schemas, its topics, and what it has made so far.

The newest samples and the newest version show a change of `app.py` before a process restarts and ends with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from streamlearn.apps import AppFolder, load_app
from streamlearn.cli.doctor.machine_findings import Finding, wrong
from streamlearn.cli.output.units import counted
from streamlearn.errors import StreamlearnError, TopicMissing, TopicUnreachable, UnknownSchema
from streamlearn.events import EventDecoder
from streamlearn.given_up import GivenUpFile
from streamlearn.ingest.output.progress_log import DeadShare
from streamlearn.online import open_state_store
from streamlearn.online.fold_progress import read_progress
from streamlearn.printable import printable
from streamlearn.publisher import Lineage
from streamlearn.samples import SampleCodec
from streamlearn.topics import AccessSettings, Topic, open_topic
from streamlearn.topics.settings import Durability
from streamlearn.versions import open_registry, open_store
from streamlearn.versions.format.log import Log
from streamlearn.versions.pointer.registry import missing

__all__ = ["app_findings", "durability_findings"]

# Shorter than the timeout of other commands, because a person waits for the result.
REACH_S = 3.0
_CREATE_HELP = "`streamlearn topics APP --create 4` creates all missing topics, with 4 partitions"
_READ_WAIT_MS = 1_000
_CHANGED_HELP = (
    "ingest made it with another app.py: restore that, or give the changed application a new name "
    '(see "Change an application" in the documentation)'
)
_WINDOWS_HELP = (
    "if you meant to change them, restart ingest and the trainer: samples whose windows are still open get the new "
    "ones. Otherwise restore app.py"
)
# Folding that keeps up leaves fewer messages.
_BEHIND_MESSAGES_MAX = 10_000
_FOLD_HELP = "`streamlearn features fold APP` folds them, and `up` starts it; if it runs, see its log"
_SILENT_HELP = "it may still answer, with an old version: end it, and start it again if it is needed"


def app_findings(app: Path, overrides: list[str]) -> Iterator[Finding]:
    """Check the application in a folder, with overrides of its settings."""
    try:
        folder = load_app(app, [f"topics.reach_s={REACH_S:g}", *overrides])
    except StreamlearnError as error:
        yield wrong(f"app {app}", error)
        return
    fingerprints = f"model {folder.app.model_fingerprint}, samples {folder.app.samples_fingerprint}"
    yield Finding(f"app {folder.app.name}", "ok", fingerprints)
    yield _schemas(folder)
    yield from _topics(folder)
    yield _store(folder)
    yield _registry(folder)
    for process in GivenUpFile(app).read():
        detail = f"`up` gave it up ({process.how})"
        yield Finding(f"process {process.name}", "wrong", detail, process.help)


def _dead_letters(folder: AppFolder) -> Iterator[Finding]:
    share_max = folder.settings.ingest.dead_share_max
    with closing(DeadShare(folder)) as dead_share:
        share = dead_share()
    if share > share_max:
        detail = f"{share:.1%} of ingest's recent events became dead letters; at most {share_max:.1%} is allowed"
        hint = "`streamlearn peek APP dead_letters` shows each one with its origin and reason"
        yield Finding("dead letters", "wrong", detail, hint)


def _schemas(folder: AppFolder) -> Finding:
    try:
        EventDecoder.of(folder)
    except StreamlearnError as error:
        return wrong("event schemas", error)
    topics = folder.settings.topics
    others = f"{len(topics.old_schemas)} older schemas and {len(topics.schema_ids)} of a schema registry are configured"
    return Finding("event schemas", "ok", f"current ones are valid, {others}")


def _topics(folder: AppFolder) -> Iterator[Finding]:
    # By default, one request may take longer than this check.
    access = replace(folder.access, request_timeout_ms=folder.access.unreachable_after_ms)
    unreachable: set[str] = set()
    partitions: dict[str, int] = {}
    missing: list[str] = []
    durable: dict[str, Durability | None] = {}
    for name in folder.topics:
        what, root = f"topic {name}", folder.topic_url(name).rpartition("/")[0]
        if root in unreachable:
            yield Finding(what, "wrong", f"not checked: {root} did not answer")
            continue
        try:
            with open_topic(folder.topic_url(name), access) as topic:
                partitions[name] = topic.partitions
                yield Finding(what, "ok", f"{topic.url}, {topic.partitions} partitions")
                durable[name] = topic.durability()
        except TopicMissing as error:
            missing.append(name)
            yield Finding(what, "missing", error.message, _CREATE_HELP)
        except StreamlearnError as error:
            if isinstance(error, TopicUnreachable):
                unreachable.add(root)
            yield wrong(what, error)
    if missing and partitions:
        detail = f"{', '.join(partitions)} exist, but not {', '.join(missing)}; all topics are needed"
        yield Finding("topics", "wrong", detail, _CREATE_HELP)
    if "samples" in partitions:
        yield _samples(folder, access)
    if "progress" in partitions:
        yield from _dead_letters(folder)
    if folder.app.features.entities:
        yield _features(folder, has_topic="interactions" in partitions)
    impressions, actions = partitions.get("impressions"), partitions.get("actions")
    if impressions and actions and impressions != actions:
        detail = f"impressions has {impressions}, actions has {actions}"
        hint = (
            "both topics need the same number, because requests and actions are joined by partition: recreate one "
            "of them"
        )
        yield Finding("partitions", "wrong", detail, hint)
    yield from durability_findings(durable)


def durability_findings(durable: Mapping[str, Durability | None]) -> Iterator[Finding]:
    """Check for topics that lose records together with a broker; None stands for a topic without brokers."""
    on_brokers = {name: facts for name, facts in durable.items() if facts is not None}
    if unclean := [name for name, facts in on_brokers.items() if facts.unclean]:
        detail = f"unclean.leader.election.enable=true for {', '.join(unclean)}: a leader election may lose records"
        yield Finding("unclean elections", "wrong", detail, "set it to false for each with kafka-configs --alter")
    if thin := [name for name, facts in on_brokers.items() if facts.is_thin]:
        detail = f"min.insync.replicas=1 for {', '.join(thin)}: acknowledged records may exist on one broker only"
        yield Finding("replicas in sync", "wrong", detail, "set it to 2 for each with kafka-configs --alter")
    if single := [name for name, facts in on_brokers.items() if facts.replicas == 1]:
        detail = f"1 for {', '.join(single)}: if the broker loses its disk, the records are lost"
        yield Finding("replicas", "missing", detail, "enough for tests; use 3 in production")


def _samples(folder: AppFolder, access: AccessSettings) -> Finding:
    """Compare the application with the newest sample of each partition."""
    what = "newest samples"
    try:
        codec = SampleCodec(folder.app, folder.settings.samples)
        with open_topic(folder.topic_url("samples"), access) as topic:
            newest = [codec.decode(message) for message in _newest(topic)]
    except UnknownSchema as error:
        return Finding(what, "wrong", error.message, _CHANGED_HELP)
    except StreamlearnError as error:
        return wrong(what, error)
    if not newest:
        return Finding(what, "ok", "there are none yet")
    windows = {batch.header.window_settings for batch in newest}
    if windows != {folder.app.window_settings}:
        detail = f"they were made with other windows than the application's: {', '.join(sorted(windows))}"
        return Finding(what, "wrong", detail, _WINDOWS_HELP)
    return Finding(what, "ok", "they have the application's features, labels and windows")


def _store(folder: AppFolder) -> Finding:
    """Compare the application with the newest version in the store."""
    try:
        store = open_store(folder.store_url, settings=folder.settings.versions)
        what, log = f"store {store.url}", Log(store, folder.app.name)
        newest = log.newest()
        entry = None if newest is None else log.read(newest)
        if entry is None:
            return Finding(what, "ok", f"it has no version of {folder.app.name} yet")
        Lineage.of(folder).check(entry.manifest)
    except StreamlearnError as error:
        return wrong("newest version", error)
    version, windows = f"version {entry.manifest.version}", entry.manifest.windows
    if windows != folder.app.window_settings:
        return Finding(what, "wrong", f"{version} was learned with other windows: {windows}", _WINDOWS_HELP)
    return Finding(what, "ok", f"{version} has the application's features, labels, tables and windows")


def _registry(folder: AppFolder) -> Finding:
    """Check that the registry answers, and that all nodes it knows send heartbeats."""
    try:
        with open_registry(folder.registry_url, folder.app.name, folder.settings.registry) as registry:
            pointer, nodes = registry.pointer(), registry.nodes()
            silent = missing(registry.silent(), nodes)
    except StreamlearnError as error:
        return wrong("registry", error)
    at = "no version is active" if pointer is None or pointer.active is None else f"version {pointer.active.version}"
    detail = f"{at}, {counted(len(nodes), 'node')}"
    if silent:
        names = printable(", ".join(node.name for node in silent))
        return Finding(f"registry {registry.url}", "wrong", f"{detail}; no heartbeat from {names}", _SILENT_HELP)
    return Finding(f"registry {registry.url}", "ok", detail)


def _features(folder: AppFolder, *, has_topic: bool) -> Finding:
    """Check that the store of feature states answers, and that folding is not far behind."""
    try:
        with open_state_store(folder) as store:
            what = f"feature states {store.url}"
            if not has_topic:
                store.current(folder.app.samples_name, folder.app.features.entities[0])
                return Finding(what, "ok", "the store answers; see topic interactions")
            found = read_progress(folder, store)
    except StreamlearnError as error:
        return wrong("feature states", error)
    detail = "; ".join(
        f"{one.entity.side}: {one.claimed} of {counted(one.partitions, 'partition')} claimed, "
        f"{counted(one.behind, 'message')} left"
        for one in found
    )
    if any(one.behind == one.messages > 0 for one in found):
        return Finding(what, "wrong", f"no interaction is folded ({detail})", _FOLD_HELP)
    if sum(one.behind for one in found) > _BEHIND_MESSAGES_MAX:
        return Finding(what, "wrong", f"folding is far behind ({detail})", _FOLD_HELP)
    return Finding(what, "ok", detail)


def _newest(topic: Topic) -> list[bytes]:
    """Return the last message of each partition that has one."""
    messages = []
    with topic.reader() as reader:
        for partition in range(topic.partitions):
            end = reader.end(partition)
            if end > reader.earliest(partition):
                records = reader.read(partition, end - 1, max_records=1, wait_ms=_READ_WAIT_MS)
                messages += [value for value in records.values if value is not None]
    return messages
