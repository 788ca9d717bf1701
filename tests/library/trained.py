"""The learnable application with a library, its items, and runs of a trainer that keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from streamlearn.apps import App, AppFolder
from streamlearn.events.encoder import EventEncoder
from streamlearn.library.library import Library
from streamlearn.topics import create_topic, partition_of
from streamlearn.trainer import TrainReport
from streamlearn.trainer.intake.item_feed import ItemFeed
from streamlearn.trainer.towers.tower_steps import own_steps
from streamlearn.versions import Chain
from tests.library.place import kept_app
from tests.trainer.runs import local_client, run, store_of
from tests.trainer.stream import T_MS, learnable_folder

STRICT: Mapping[str, Any] = {"order": "strict", "step_rows": 64, "rate": 0.01}


def kept_folder(path: Path, app: App | None = None, *, publish_interval_s: float = 3_600) -> AppFolder:
    """The application in a folder, in strict order, with its topic of items."""
    path.mkdir(exist_ok=True)
    settings = {"trainer": STRICT, "publisher": {"publish_interval_s": publish_interval_s}, "topics": {"time": "event"}}
    folder = learnable_folder(path, settings, app or kept_app())
    create_topic(folder.topic_url("items"), folder.topic_settings("items", 2), folder.access).close()
    return folder


def write_items(folder: AppFolder, given: Sequence[tuple[int, int, int | None]]) -> None:
    """Write items by id, second and length; without a length they are removed."""
    encoder = EventEncoder(folder.app, folder.settings.events)
    with folder.open_topic("items") as topic, topic.writer() as writer:
        for item, second, length in given:
            features = None if length is None else {"tags": [item % 3], "length": float(length)}
            time_ms = T_MS + 1_000 * second
            key, value = encoder.item({"item_id": item, "event_time_ms": time_ms, "features": features})
            writer.send(partition_of(key, topic.partitions), value, key, time_ms)
        writer.flush()


def keep(folder: AppFolder, **more: Any) -> TrainReport:
    """Learn all there is, and keep the library."""
    with closing(ItemFeed.open(folder)) as items, local_client(folder) as client:
        return run(folder, client=client, lead=own_steps(folder, client, items.library), items=items, **more)


def kept(folder: AppFolder, version: int | None = None) -> Library:
    """The library of a version, by default of the newest."""
    library = Library(folder.app)
    library.restore(Chain.find(store_of(folder), folder.app.name, version))
    return library


def lengths(library: Library) -> dict[Any, float]:
    """The length of each item, by id."""
    view = library.view()
    return dict(zip(view.ids_of().listed(), view.items().features.dense["length"][:, 0].tolist(), strict=True))
