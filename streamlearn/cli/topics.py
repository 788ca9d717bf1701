"""`streamlearn topics`: an application's topics, what is in them, and how they are set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.options import AppArgument, JsonOption, SetOption
from streamlearn.cli.table import print_json, print_table

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder

__all__ = ["topics"]


def topics(
    app: AppArgument,
    create: Annotated[
        int, typer.Option(metavar="PARTITIONS", help="Create those that are missing, with so many partitions.")
    ] = 0,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Show APP's topics: records, retention, size limits."""
    from streamlearn.apps import TOPICS, load_app

    folder = load_app(app, set_ or ())
    rows = [_row(folder, name, create) for name in TOPICS]
    print_json(rows) if json else print_table(rows)


def _row(folder: AppFolder, name: str, create: int) -> dict[str, Any]:
    from streamlearn.errors import TopicMissing
    from streamlearn.topics import create_topic

    url = folder.topic_url(name)
    try:
        found = folder.open_topic(name)
    except TopicMissing:
        if not create:
            empty = {"partitions": 0, "records": 0, "retention_ms": "", "record_bytes_max": "", "compacted": ""}
            return {"topic": name, **empty, "url": url, "id": "missing"}
        found = create_topic(url, folder.topic_settings(name, create), folder.access)
    with found as topic, topic.reader() as reader:
        settings = topic.settings()
        records = sum(reader.end(one) - reader.earliest(one) for one in range(topic.partitions))
        return {
            "topic": name,
            "partitions": topic.partitions,
            "records": records,
            "retention_ms": settings.retention_ms,
            "record_bytes_max": settings.record_bytes_max,
            "compacted": settings.compacted,
            "url": topic.url,
            "id": topic.topic_id,
        }
