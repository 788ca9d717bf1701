"""Small applications with a library: ids that are numbers or texts, and their topics in memory."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from streamlearn.apps import App, AppFolder
from streamlearn.features import Library, Retrieval
from streamlearn.settings import Settings
from streamlearn.testing import small_app, small_folder, small_impression
from streamlearn.topics import Topic, create_topic

T_MS = 1_700_000_000_000
_numbers = itertools.count()


def library_app(value: Any = "int", expire_s: int | None = None, name: str = "small") -> App:
    """The small application with a library, whose ids are of a type."""
    app = small_app(name)
    slots = tuple(
        replace(slot, value=value) if slot.name in ("video_id", "history") else slot for slot in app.features.slots
    )
    retrieval = Retrieval("click", ("user_id", "country"), ("video_id", "tags", "vector"), 8, library=Library(expire_s))
    return replace(app, features=replace(app.features, slots=slots), retrieval=retrieval)


def library_folder(app: App, folder: Path = Path("/nowhere"), **sections: dict[str, Any]) -> AppFolder:
    """An application in a folder, with topics of its own in memory."""
    said = sections | {
        "topics": {"root": f"memory://library-{next(_numbers)}-", "time": "event"} | sections.get("topics", {})
    }
    return small_folder(folder, app, msgspec.convert(said, Settings))


def made_topic(folder: AppFolder, name: str, partitions: int = 2) -> Topic:
    """A topic of an application, created."""
    return create_topic(folder.topic_url(name), folder.topic_settings(name, partitions), folder.access)


def features(seed: int) -> dict[str, Any]:
    """Features of an item of the small application."""
    topics = [seed % 5] * (seed % 3)
    return {
        "tags": [f"tag{seed % 4}"],
        "topics": topics,
        "topics_weights": [0.5] * len(topics),
        "vector": [float(seed)] * 3,
    }


def shown(seed: int, value: str) -> dict[str, Any]:
    """Arguments of `Producer.impression`, with ids of a type."""
    given = small_impression(seed)
    if value == "str":
        given["user"]["history"] = [f"v{one}" for one in given["user"]["history"]]
        given["items"] = [item | {"video_id": f"v{item['video_id']}"} for item in given["items"]]
    return given
