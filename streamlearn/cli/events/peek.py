"""`streamlearn peek`: the content of a topic, one line of JSON for each event or message."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from streamlearn.cli.options import AppArgument, SetOption, one_of
from streamlearn.errors import TopicUnreachable, UsageError

if TYPE_CHECKING:
    from streamlearn.topics import Records, Topic

__all__ = ["peek"]

TOPICS = ("impressions", "actions", "samples", "interactions", "items", "dead_letters", "progress")
READ_RECORDS = 64
READ_WAIT_MS = 10_000


def peek(
    app: AppArgument,
    topic: Annotated[
        str, typer.Argument(help=f"The topic: {', '.join(TOPICS)}.", callback=one_of(TOPICS))
    ] = "impressions",
    partition: Annotated[int | None, typer.Option(help="Read only this partition.", show_default="all in turn")] = None,
    offset: Annotated[
        int | None, typer.Option("--from", help="Offset to begin with; needs --partition.", show_default="the earliest")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Most events to print, or messages if the topic holds no events.")
    ] = 10,
    controls: Annotated[bool, typer.Option("--controls", help="Also print heartbeats and end marks.")] = False,
    set_: SetOption = None,
) -> None:
    """Print the content of one of APP's topics as JSON, one event a line, with unreadable ones and the reason."""
    from streamlearn.apps import load_app
    from streamlearn.cli.events.record_output import shown_records

    folder = load_app(app, set_ or ())
    if offset is not None and partition is None:
        message = f"--from {offset} needs a partition, because each partition has offsets of its own"
        raise UsageError(message, help="name it with --partition")
    with folder.open_topic(topic) as opened:
        partitions = range(opened.partitions) if partition is None else (partition,)
        batches = (batch for number in partitions for batch in _batches(opened, number, offset))
        show = shown_records(folder, topic, controls=controls)
        contents = ((records, index, content) for records in batches for index, content in show(records))
        for records, index, content in islice(contents, limit):
            position = {"partition": records.partition, "offset": int(records.offsets[index])}
            sys.stdout.write(json.dumps(position | content, ensure_ascii=False) + "\n")


def _batches(topic: Topic, partition: int, offset: int | None) -> Iterator[Records]:
    """Read all records that a partition holds now; one read may return fewer."""
    with topic.reader([partition]) as reader:
        at, end = reader.earliest(partition) if offset is None else offset, reader.end(partition)
        if at >= end:
            reader.check_offset(partition, at, reader.earliest(partition), end)
        while at < end:
            records = reader.read(partition, at, max_records=READ_RECORDS, wait_ms=READ_WAIT_MS)
            if records.next_offset == at:
                message = f"{reader.url} partition {partition} ends at {end}, but no records came from offset {at} on"
                raise TopicUnreachable(message, help="check that its broker is healthy, then run this again")
            yield records
            at = records.next_offset
