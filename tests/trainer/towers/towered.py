"""The learnable application with retrieval, and runs of a trainer that learns its towers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamlearn.apps import App, AppFolder
from streamlearn.features import Retrieval
from streamlearn.topics import create_topic
from tests.trainer.stream import learnable_app, learnable_folder

if TYPE_CHECKING:
    from streamlearn.trainer import TrainReport

__all__ = ["TWO", "learned", "published", "towered_app", "towered_folder"]

TWO = Retrieval("click", user=("user_id", "history", "age"), item=("video_id", "tags"), dim=8)
_STRICT: Mapping[str, Mapping[str, Any]] = {
    "trainer": {"order": "strict", "step_rows": 64, "rate": 0.01},
    "publisher": {"publish_interval_s": 3_600},
}


def towered_app(**fields: Any) -> App:
    """The learnable application with retrieval."""
    return replace(learnable_app(), retrieval=replace(TWO, **fields))


def towered_folder(
    path: Path, settings: Mapping[str, Mapping[str, Any]] | None = None, app: App | None = None
) -> AppFolder:
    """The application in a folder, in strict order."""
    path.mkdir(exist_ok=True)
    more = settings or {}
    given = {name: {**_STRICT.get(name, {}), **more.get(name, {})} for name in {*_STRICT, *more}}
    folder = learnable_folder(path, given, app or towered_app())
    if folder.app.retrieval is not None:
        url, wanted = folder.topic_url("items"), folder.topic_settings("items", 2)
        create_topic(url, wanted, folder.access, exist_ok=True).close()
    return folder


def learned(folder: AppFolder, **more: Any) -> TrainReport:
    """Learn all there is with the towers, on tables in this process."""
    # An app.py may import this module, and must not load TensorFlow.
    from streamlearn.trainer.intake.item_feed import ItemFeed
    from streamlearn.trainer.towers.tower_steps import own_steps
    from tests.trainer.runs import local_client, run

    with ExitStack() as ends:
        client = ends.enter_context(local_client(folder))
        if folder.app.retrieval is None:
            return run(folder, client=client, **more)
        items = ends.enter_context(ItemFeed.open(folder))
        return run(folder, client=client, lead=own_steps(folder, client, items.library), items=items, **more)


def published(folder: AppFolder, **more: Any) -> TrainReport:
    """Learn all there is as `train` does, with versions that hold vectors and are judged by their hit rates."""
    from streamlearn.trainer.intake.item_feed import ItemFeed
    from streamlearn.trainer.towers.tower_steps import TowerMaker
    from streamlearn.trainer.towers.version_hits import VersionHits
    from streamlearn.versions.format.manifest import RetrievalRecord
    from tests.trainer.runs import local_client, run, store_of

    app = folder.app
    assert app.retrieval is not None
    record = RetrievalRecord(
        graph="0" * 64, fingerprint=app.retrieval_fingerprint, label=app.retrieval.label, dim=app.retrieval.dim
    )
    with local_client(folder) as client, ItemFeed.open(folder) as items:
        towers = TowerMaker(folder, client, items.library)
        label = app.label_names.index(record.label)
        items.retrieve_by(towers, record, VersionHits(store_of(folder), app.name, record.dim, label, towers))
        return run(folder, client=client, lead=towers, items=items, **more)
