"""Training: an application's trainer put together from its folder, and run."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import TopicMissing, UsageError
from streamlearn.models import Model, export_graphs, model_of
from streamlearn.ps import PsClient, Shelf
from streamlearn.publisher import Lineage, compact_apart
from streamlearn.publisher.bases import Compact
from streamlearn.table import declared_tables
from streamlearn.topics import Topic
from streamlearn.trainer.intake.feed import Until
from streamlearn.trainer.trainer import Trainer, TrainReport
from streamlearn.trainer.validation.score_log import ScoreLog, scores_folder
from streamlearn.trainer.warm_start import source_of
from streamlearn.versions import Store, open_registry, open_store
from streamlearn.versions.format.graphs import put_graph
from streamlearn.versions.format.log import Log

__all__ = ["ends_of", "samples_of", "train"]


def train(
    folder: AppFolder,
    stop: threading.Event,
    *,
    until: Callable[[Topic], Until] = lambda topic: Until(),
    token: bytes | None = None,
    begin_with: str = "",
    accept_lost: bool = False,
    show: Callable[[Trainer], None] = lambda trainer: None,
    clock: Clock = SYSTEM_CLOCK,
) -> TrainReport:
    """Train an application's model from its samples.

    Args:
        folder: The application.
        stop: Ends it at the next step boundary, with a version.
        until: When it ends by itself, said of the topic once that is open.
        token: What shards are told to be let in.
        begin_with: MODEL or MODEL:VERSION of the same store, whose rows and weights its first version has.
        accept_lost: Go on from the earliest samples there are, where those that come next are gone.
        show: Called between steps.
        clock: What time is taken by.

    Raises:
        StreamlearnError: It cannot begin, or cannot go on.
    """
    model = model_of(folder)
    with ExitStack() as ends:
        topic = ends.enter_context(samples_of(folder))
        store = open_store(folder.store_url, settings=folder.settings.versions)
        _check_newest(folder, store)
        registry = ends.enter_context(open_registry(folder.registry_url, folder.app.name, folder.settings.registry))
        client = ends.enter_context(_client(folder, store, token))
        validation = folder.settings.validation
        log = ends.enter_context(ScoreLog(scores_folder(folder.folder, validation), validation, clock=clock))
        trainer = Trainer(
            folder, model, topic, client, store,
            registry=registry, graph=_graph(folder, model, store), scored=log.offer, clock=clock,
            begin_with=source_of(store, begin_with) if begin_with else None, compact=_compact(folder),
            accept_lost=accept_lost,
        )  # fmt: skip
        return trainer.run(stop, until=until(topic), show=show)


def ends_of(topic: Topic, text: str) -> Mapping[int, int]:
    """Where each partition is not read on, of `end`, or of `PARTITION:OFFSET,...`.

    Raises:
        UsageError: It is neither, or names no partition of the topic.
    """
    with topic.reader() as reader:
        ends = {partition: reader.end(partition) for partition in range(topic.partitions)}
    if text == "end":
        return ends
    for one in text.split(","):
        partition, colon, offset = one.partition(":")
        if not (colon and partition.isdecimal() and offset.isdecimal() and int(partition) in ends):
            message = f"invalid PARTITION:OFFSET {one!r} of {topic.url}, which has {topic.partitions} partitions"
            raise UsageError(
                message, help="write `end`, or for example 0:1000,1:980; partitions left out are read to their end"
            )
        ends[int(partition)] = int(offset)
    return ends


def samples_of(folder: AppFolder) -> Topic:
    """An application's topic of samples.

    Raises:
        TopicMissing: There is none yet.
    """
    try:
        return folder.open_topic("samples")
    except TopicMissing as error:
        help = (
            "`streamlearn topics APP --create PARTITIONS` creates an application's topics, and `streamlearn "
            "ingest APP` writes samples to this one; topics.root or topics.samples names another place"
        )
        raise TopicMissing(error.message, help=help) from None


def _check_newest(folder: AppFolder, store: Store) -> None:
    """Hold the application against its newest version before its model is built: a model speaks of shapes alone."""
    log = Log(store, folder.app.name)
    newest = log.newest()
    found = None if newest is None else log.read(newest)
    if found is not None:
        options = declared_tables(folder.app.features, folder.settings.tables)
        Lineage.of(folder.app, options, folder.settings.publisher.row_type).check(found.manifest)
        store.signatures.check_can_sign(found.manifest)


def _graph(folder: AppFolder, model: Model, store: Store) -> str:
    """The graphs that versions are served by, in the store; their id."""
    app = folder.app
    with tempfile.TemporaryDirectory(prefix="streamlearn-graphs-") as scratch:
        exported = Path(scratch, "graphs")
        export_graphs(model, app.features, [label.name for label in app.labels], exported, folder.settings.trainer.seed)
        return put_graph(store, app.name, exported)


def _compact(folder: AppFolder) -> Compact | None:
    """What writes bases beside training; a store in memory is no other process's."""
    url = folder.store_url
    return None if url.startswith("memory://") else compact_apart(url, folder.app.name, folder.settings.versions)


def _client(folder: AppFolder, store: Store, token: bytes | None) -> PsClient:
    app, settings = folder.app, folder.settings
    options = declared_tables(app.features, settings.tables)
    if settings.ps.addresses:
        return PsClient.connect(app.name, options, settings.ps, token)
    return PsClient.local(options, Shelf(store, app.name), settings.ps)
