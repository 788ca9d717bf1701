"""Checks of an application against what it has made so far: its newest samples and its newest version.

They find a change of `app.py` before a process restarts and ends with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlearn.apps import AppFolder
from streamlearn.cli.doctor.check_result import Finding, wrong
from streamlearn.errors import StreamlearnError, UnknownSchema

if TYPE_CHECKING:
    from streamlearn.topics import AccessSettings, Topic

__all__ = ["registry_finding", "samples_finding", "store_finding"]

_READ_WAIT_MS = 1_000
_CHANGED_HELP = (
    "ingest made it with another app.py: restore that, or give the changed application a new name "
    "(docs/operating/changing.md)"
)
_WINDOWS_HELP = (
    "if you meant to change them, restart ingest and the trainer: samples whose windows are still open get the new "
    "ones. Otherwise restore app.py"
)


def samples_finding(folder: AppFolder, access: AccessSettings) -> Finding:
    """Compare the application with the newest sample of each partition."""
    from streamlearn.samples import SampleCodec
    from streamlearn.topics import open_topic

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


def store_finding(folder: AppFolder) -> Finding:
    """Compare the application with the newest version in the store."""
    from streamlearn.publisher import Lineage
    from streamlearn.table import declared_tables
    from streamlearn.versions import open_store
    from streamlearn.versions.format.log import Log

    try:
        store = open_store(folder.store_url, settings=folder.settings.versions)
        what, log = f"store {store.url}", Log(store, folder.app.name)
        newest = log.newest()
        entry = None if newest is None else log.read(newest)
        if entry is None:
            return Finding(what, "ok", f"it has no version of {folder.app.name} yet")
        options = declared_tables(folder.app.features, folder.settings.tables)
        Lineage.of(folder.app, options, folder.settings.publisher.row_type).check(entry.manifest)
    except StreamlearnError as error:
        return wrong("newest version", error)
    version, windows = f"version {entry.manifest.version}", entry.manifest.windows
    if windows != folder.app.window_settings:
        return Finding(what, "wrong", f"{version} was learned with other windows: {windows}", _WINDOWS_HELP)
    return Finding(what, "ok", f"{version} has the application's features, labels, tables and windows")


def registry_finding(folder: AppFolder) -> Finding:
    """Check that the registry answers."""
    from streamlearn.versions import open_registry

    try:
        with open_registry(folder.registry_url, folder.app.name, folder.settings.registry) as registry:
            pointer, nodes = registry.pointer(), registry.nodes()
    except StreamlearnError as error:
        return wrong("registry", error)
    at = "no version is active" if pointer is None or pointer.active is None else f"version {pointer.active.version}"
    return Finding(f"registry {registry.url}", "ok", f"{at}, {len(nodes)} nodes")


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
