"""Runs of a trainer on a stream, and all that a version says of what was learned."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from streamlearn.apps import AppFolder
from streamlearn.models import Model
from streamlearn.ps import PsClient, Shelf
from streamlearn.table import TableSet, declared_tables
from streamlearn.topics import Topic
from streamlearn.trainer.intake.feed import Until
from streamlearn.trainer.intake.step_cutter import marked_rows
from streamlearn.trainer.shared_marks import SharedMarks
from streamlearn.trainer.trainer import Trainer, TrainReport
from streamlearn.versions import Chain, Store, load, load_tensors, open_store
from streamlearn.versions.format.loading import load_bytes
from tests.trainer.toy import Toy

__all__ = ["known_of", "local_client", "run", "state_of", "store_of", "until_end"]


def store_of(folder: AppFolder) -> Store:
    """The store in an application's folder."""
    return open_store(f"file://{folder.folder}/store")


def local_client(folder: AppFolder) -> PsClient:
    """Its tables, in this process."""
    options = declared_tables(folder.app.tables, folder.settings.tables)
    return PsClient.local(options, Shelf(store_of(folder), folder.app.name), folder.settings.ps)


def until_end(topic: Topic) -> Until:
    """To where a topic ends now."""
    with topic.reader() as reader:
        return Until({partition: reader.end(partition) for partition in range(topic.partitions)})


def run(
    folder: AppFolder,
    *,
    stop: threading.Event | None = None,
    client: PsClient | None = None,
    model: Model | None = None,
    show: Callable[[Trainer], None] = lambda trainer: None,
    **more: Any,
) -> TrainReport:
    """Learn all there is, on tables in this process where no others are given."""
    with ExitStack() as ends:
        topic = ends.enter_context(folder.open_topic("samples"))
        client = ends.enter_context(client or local_client(folder))
        trainer = Trainer(folder, model or Toy(), topic, client, store_of(folder), **more)
        return trainer.run(stop or threading.Event(), until=until_end(topic), show=show)


def state_of(folder: AppFolder, version: int | None = None) -> dict[str, bytes]:
    """Everything learned that a version holds, by name: rows with their optimizer's state, and dense weights."""
    chain = Chain.find(store_of(folder), folder.app.name, version)
    options = declared_tables(folder.app.tables, folder.settings.tables)
    tables = TableSet(options)
    load(chain, tables, training=True)
    found: dict[str, bytes] = {}
    for changes in tables.changed(None, chain.version, parts=1024):
        order = np.argsort(changes.keys)
        for name in ("keys", "rows", "state"):
            found[f"{changes.table}.{name}"] = np.asarray(getattr(changes, name))[order].tobytes()
    for kind in ("dense", "dense_optimizer"):
        found |= {f"{kind}.{name}": one.tobytes() for name, one in load_tensors(chain.store, chain.head, kind).items()}
    return found


def known_of(
    folder: AppFolder, messages: list[tuple[int, Any]], version: int | None = None
) -> Mapping[tuple[int, int, int, str], int]:
    """What the newest version's marks know of every label in some messages: 0 or 1; nothing of those not learned."""
    chain = Chain.find(store_of(folder), folder.app.name, version)
    remembered = SharedMarks(len(folder.app.labels), folder.settings.marks)
    remembered.load(load_bytes(chain.store, chain.head, "marks"))
    known: dict[tuple[int, int, int, str], int] = {}
    for _, batch in messages:
        rows = marked_rows(batch, np.arange(len(batch)))
        # As if all were positive: those that were learned as negative are corrected, and those not learned are learned.
        told = remembered.settle(1, _all_positive(rows))
        for number, label in enumerate(batch.labels):
            bit = np.uint32(1 << number)
            for row in np.flatnonzero(rows.settles & bit):
                request = batch.request_index[row]
                key = (
                    int(batch.requests.partition[request]), int(batch.requests.offset[request]),
                    int(batch.item_index[row]), label.name,
                )  # fmt: skip
                if told.learn[row] & bit:
                    continue
                known.setdefault(key, 0 if told.correct[row] & bit else 1)
    return known


def _all_positive(rows: Any) -> Any:
    from dataclasses import replace

    return replace(rows, labels=rows.settles)
