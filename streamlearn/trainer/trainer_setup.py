"""Training: builds an application's trainer from its folder and runs it."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from streamlearn.access.renewal import GivenToken
from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import ConfigError, TopicMissing, UsageError
from streamlearn.models import Model, export_graphs, model_of
from streamlearn.ps import PsClient, Shelf
from streamlearn.publisher import Lineage, compact_apart
from streamlearn.publisher.bases import Compact
from streamlearn.table import declared_tables
from streamlearn.topics import Topic
from streamlearn.trainer.intake.feed import Until
from streamlearn.trainer.intake.item_feed import ItemFeed
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.learning_loop import OwnSteps, StepLearner
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.towers.tower_state import towers_of
from streamlearn.trainer.towers.tower_steps import TowerMaker
from streamlearn.trainer.towers.user_graph import UserGraph
from streamlearn.trainer.towers.version_hits import VersionHits
from streamlearn.trainer.trainer import Trainer, TrainReport
from streamlearn.trainer.validation.score_log import ScoreLog, scores_folder
from streamlearn.trainer.workers.setup import lead
from streamlearn.versions import Store, open_registry, open_store
from streamlearn.versions.format.graphs import put_graph
from streamlearn.versions.format.log import Log
from streamlearn.versions.format.manifest import RetrievalRecord
from streamlearn.versions.pointer.model import Model as VersionedModel
from streamlearn.versions.upkeep.cleanup import clean_up, plan_cleanup

__all__ = ["ends_of", "put_graphs", "put_user_graph", "samples_of", "train"]


def train(
    folder: AppFolder,
    stop: threading.Event,
    *,
    until: Callable[[Topic], Until] = lambda topic: Until(),
    token: GivenToken | None = None,
    tls: tuple[Path, Path] | None = None,
    accept_lost: bool = False,
    passes: int = 1,
    history_ms: int | None = None,
    is_shuffled: bool = False,
    show: Callable[[Trainer], None] = lambda trainer: None,
    clock: Clock = SYSTEM_CLOCK,
) -> TrainReport:
    """Train an application's model from its samples until `stop` is set or the open topic's `until` is reached.

    The run ends at a step boundary, with a version. The shards require `token`, and workers must send it; `tls` has the
    certificate and the key with which the leader of workers listens. With `accept_lost`, training continues
    from the earliest samples if the next ones are gone. A model without versions learns what was shown before
    `history_ms` (all there is) `passes` times before the first one, with `is_shuffled` in another order each time.
    `show` is called between steps.
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
        workers = folder.settings.workers
        if workers.slices == 1 and workers.listen:
            message = "workers.listen is set, but workers.slices is 1: there is nothing for workers to learn"
            raise ConfigError(message, help="set workers.slices to 2 or more, or leave workers.listen empty")
        items = None
        leads: Callable[[Learner, Rows], StepLearner] = OwnSteps
        if workers.slices > 1 or workers.reduce != "shards":
            leads = lead(folder, client, token, tls, ends, stop=stop, clock=clock)
        if folder.app.retrieval is not None:
            items = ends.enter_context(ItemFeed.open(folder, clock=clock))
            leads = towers = TowerMaker(folder, client, items.library, leads)
            record, label = put_user_graph(folder, store), folder.app.label_names.index(folder.app.retrieval.label)
            items.retrieve_by(towers, record, VersionHits(store, folder.app.name, record.dim, label, towers))
        trainer = Trainer(
            folder, model, topic, client, store,
            registry=registry, graph=put_graphs(folder, model, store), on_scores=log.offer, clock=clock,
            compact=_compact(folder), clean=partial(_clean, folder), accept_lost=accept_lost,
            passes=passes, history_ms=history_ms, is_shuffled=is_shuffled, lead=leads, items=items,
        )  # fmt: skip
        return trainer.run(stop, until=until(topic), show=show)


def ends_of(topic: Topic, text: str) -> Mapping[int, int]:
    """Parse `end` or `PARTITION:OFFSET,...` into the end of each partition; other texts raise a UsageError."""
    with topic.reader() as reader:
        ends = {partition: reader.end(partition) for partition in range(topic.partitions)}
    if text == "end":
        return ends
    for text_part in text.split(","):
        partition, colon, offset = text_part.partition(":")
        if not (colon and partition.isdecimal() and offset.isdecimal() and int(partition) in ends):
            message = f"invalid PARTITION:OFFSET {text_part!r} of {topic.url}, which has {topic.partitions} partitions"
            help = "write `end`, or for example 0:1000,1:980; partitions left out are read to their end"
            raise UsageError(message, help=help)
        ends[int(partition)] = int(offset)
    return ends


def samples_of(folder: AppFolder) -> Topic:
    """Open an application's topic of samples; raises TopicMissing before it exists."""
    try:
        return folder.open_topic("samples")
    except TopicMissing as error:
        help = (
            "`streamlearn topics APP --create 4` creates an application's topics, with 4 partitions, and "
            "`streamlearn ingest APP` writes samples to this one; topics.root or topics.samples names another place"
        )
        raise TopicMissing(error.message, help=help) from None


def _check_newest(folder: AppFolder, store: Store) -> None:
    """Check the application against its newest version before its model is built, whose errors name only shapes."""
    log = Log(store, folder.app.name)
    newest = log.newest()
    entry = None if newest is None else log.read(newest)
    if entry is not None:
        Lineage.of(folder).check(entry.manifest)
        store.signatures.check_can_sign(entry.manifest)


def put_graphs(folder: AppFolder, model: Model, store: Store) -> str:
    """Export the model's graphs to the store and return their id."""
    app = folder.app
    with tempfile.TemporaryDirectory(prefix="streamlearn-graphs-") as scratch:
        exported = Path(scratch, "graphs")
        seed = folder.settings.trainer.seed
        export_graphs(model, app.features, app.label_names, exported, seed, outputs=app.outputs)
        return put_graph(store, app.name, exported)


def put_user_graph(folder: AppFolder, store: Store) -> RetrievalRecord:
    """Export the user tower to the store, and return what versions say of retrieval."""
    app = folder.app
    assert app.retrieval is not None
    assert app.towers is not None
    outputs = [str(at) for at in range(app.retrieval.dim)]
    with tempfile.TemporaryDirectory(prefix="streamlearn-graphs-") as scratch:
        exported = Path(scratch, "graphs")
        export_graphs(UserGraph(towers_of(folder)), app.towers, outputs, exported, folder.settings.trainer.seed)
        graph = put_graph(store, app.name, exported)
    return RetrievalRecord(
        graph=graph, fingerprint=app.retrieval_fingerprint, label=app.retrieval.label, dim=app.retrieval.dim
    )


def _compact(folder: AppFolder) -> Compact | None:
    """Return the process that writes bases beside training; a store in memory is visible to this process only."""
    url = folder.store_url
    return None if url.startswith("memory://") else compact_apart(url, folder.app.name, folder.settings.versions)


def _clean(folder: AppFolder) -> tuple[int, int]:
    """Remove what retention no longer keeps, after the time that a starting node may take."""
    model = VersionedModel(folder.app.name, folder.store_url, folder.registry_url, folder.settings)
    try:
        plan = plan_cleanup(model)
        swept = clean_up(model, plan, wait=lambda: time.sleep(folder.settings.retention.grace_s))
    finally:
        model.close()
    return swept.files, swept.bytes


def _client(folder: AppFolder, store: Store, token: GivenToken | None) -> PsClient:
    app, settings = folder.app, folder.settings
    options = declared_tables(app.tables, settings.tables)
    if settings.ps.addresses:
        return PsClient.connect(app.name, options, settings.ps, token)
    return PsClient.local(options, Shelf(store, app.name), settings.ps)
