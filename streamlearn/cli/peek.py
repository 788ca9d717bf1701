"""`streamlearn peek`: the records of an application's topics, one line of JSON each."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import Annotated

import typer

from streamlearn.cli.options import AppArgument, SetOption

__all__ = ["peek"]


class EventTopic(StrEnum):
    """Which topic."""

    IMPRESSIONS = "impressions"
    ACTIONS = "actions"


def peek(
    app: AppArgument,
    topic: Annotated[EventTopic, typer.Argument(help="Which of its topics.")] = EventTopic.IMPRESSIONS,
    partition: Annotated[int, typer.Option(help="Which partition.")] = 0,
    offset: Annotated[int | None, typer.Option("--from", help="The first offset; the earliest.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many records at most.")] = 10,
    set_: SetOption = None,
) -> None:
    """Print records of one of APP's topics as JSON, one event a line."""
    from streamlearn.apps import load_app
    from streamlearn.events.show import show_record

    folder = load_app(app, set_ or ())
    with folder.open_topic(topic) as found, found.reader([partition]) as reader:
        at = reader.earliest(partition) if offset is None else offset
        records = reader.read(partition, at, max_records=limit)
        for index, value in enumerate(records.values):
            for event_index, event in enumerate(show_record(folder.app, value)):
                line = {"offset": int(records.offsets[index]), "index": event_index, **event}
                sys.stdout.write(json.dumps(line, default=repr) + "\n")
