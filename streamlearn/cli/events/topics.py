"""`streamlearn topics`: shows, creates and deletes an application's topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.options import AppArgument, JsonOption, SetOption
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.cli.output.units import bytes_text, counted, whole_units
from streamlearn.errors import StreamlearnError, TopicMissing, UsageError

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder
    from streamlearn.topics import Topic, TopicSettings

__all__ = ["topics"]

DAY_MS = 86_400_000
Row = dict[str, Any]


def topics(
    app: AppArgument,
    create: Annotated[
        int | None,
        typer.Option(min=1, metavar="PARTITIONS", help="Create missing topics with this number of partitions."),
    ] = None,
    retention_days: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=100_000,
            metavar="DAYS",
            help="With --create: retention in days, 0 for ever. Kafka counts it from EVENT time: events older than "
            "this are deleted as soon as they are written.",
            show_default="7",
        ),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete topics with their records.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --delete: delete them. Without it, they are only listed.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Only this topic, such as progress; may be repeated.")
    ] = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Show APP's topics with partitions, records, retention and size limits; or create or delete them."""
    from streamlearn.apps import load_app

    folder = load_app(app, set_ or ())
    _check_options(create, retention_days, delete, yes)
    names = _selected(folder.topics, only or [])
    if delete:
        _delete(folder, names, yes, json)
        return
    rows = [_row(folder, name, create, retention_days) for name in names]
    if json:
        print_json(rows)
    else:
        print_table([_for_people(row) for row in rows], whole=True)
        typer.echo(_locations(folder, rows))
    if create is not None:
        _report_created(folder, rows, create)
        _check_partitions(rows)
    elif any(row["id"] == "missing" for row in rows):
        typer.echo("create missing topics with --create PARTITIONS", err=True)


def _check_options(create: int | None, retention_days: int | None, delete: bool, yes: bool) -> None:
    message = ""
    if delete and create is not None:
        message = "--delete cannot be combined with --create"
    elif yes and not delete:
        message = "--yes needs --delete"
    elif retention_days is not None and create is None:
        message = "--retention-days needs --create: retention is set when a topic is created"
    if message:
        raise UsageError(message, help="see `streamlearn topics --help`")


def _selected(topics: Sequence[str], only: Sequence[str]) -> Sequence[str]:
    names = [name.replace("-", "_") for name in only]
    unknown = sorted(set(names) - set(topics))
    if unknown:
        message = f"--only {unknown[0]}: unknown topic"
        raise UsageError(message, help=f"use one of {', '.join(topics)}")
    return [name for name in topics if not names or name in names]


def _row(folder: AppFolder, name: str, create: int | None, retention_days: int | None) -> Row:
    from streamlearn.topics import create_topic

    created = False
    try:
        topic = folder.open_topic(name)
    except TopicMissing:
        url = folder.topic_url(name)
        if create is None:
            unset = dict.fromkeys(("retention_ms", "retention_bytes", "record_bytes_max", "compacted"))
            return {"topic": name, "partitions": 0, "records": 0, **unset, "url": url, "id": "missing"}
        topic = create_topic(url, _new_settings(folder, name, create, retention_days), folder.access)
        created = True
    with topic:
        settings = topic.settings()
        return {
            "topic": name,
            "partitions": topic.partitions,
            "records": _records(topic),
            "retention_ms": settings.retention_ms,
            "retention_bytes": settings.retention_bytes,
            "record_bytes_max": settings.record_bytes_max,
            "compacted": settings.compacted,
            "url": topic.url,
            "id": topic.topic_id,
            **({"created": created} if create is not None else {}),
        }


def _new_settings(folder: AppFolder, name: str, partitions: int, retention_days: int | None) -> TopicSettings:
    settings = folder.topic_settings(name, partitions)
    if retention_days is None or settings.compacted:
        return settings
    return replace(settings, retention_ms=retention_days * DAY_MS or -1)


def _records(topic: Topic) -> int:
    with topic.reader() as reader:
        return sum(reader.end(number) - reader.earliest(number) for number in range(topic.partitions))


def _for_people(row: Row) -> Row:
    if row["id"] == "missing":
        return {"topic": row["topic"], "partitions": None, "records": None, "kept": "missing", "record max": None}
    kept = whole_units(row["retention_ms"])
    if row["retention_bytes"] >= 0:
        kept += f", {bytes_text(row['retention_bytes'])} a partition"
    return {
        "topic": row["topic"],
        "partitions": row["partitions"],
        "records": row["records"],
        "kept": f"{kept}, newest per key" if row["compacted"] else kept,
        "record max": bytes_text(row["record_bytes_max"]),
    }


def _locations(folder: AppFolder, rows: list[Row]) -> str:
    """Return the root that most topics share, then each topic at another URL."""
    default = {row["topic"]: f"{folder.app.name}.{row['topic'].replace('_', '-')}" for row in rows}
    usual = [row for row in rows if row["url"].endswith(default[row["topic"]])]
    roots = list(dict.fromkeys(row["url"].removesuffix(default[row["topic"]]) for row in usual))
    others = [row for row in rows if row not in usual or not row["url"].startswith(roots[0])]
    shared = [f"at {root}{folder.app.name}.*" for root in roots[:1]]
    return "\n".join([*shared, *(f"{row['topic']} at {row['url']}" for row in others)])


def _report_created(folder: AppFolder, rows: list[Row], partitions: int) -> None:
    created = ", ".join(f"{row['topic']} ({row['partitions']})" for row in rows if row["created"])
    typer.echo(f"created, with partitions: {created}" if created else "created none: all topics exist", err=True)
    for row in rows:
        wanted = folder.topic_settings(row["topic"], partitions).partitions
        if not row["created"] and row["partitions"] != wanted:
            typer.echo(f"{row['topic']} exists with {row['partitions']} partitions, not {wanted}", err=True)


def _check_partitions(rows: list[Row]) -> None:
    counts = {row["topic"]: row["partitions"] for row in rows if row["topic"] in ("impressions", "actions")}
    if len(set(counts.values())) > 1:
        message = " and ".join(f"{name} has {count} partitions" for name, count in counts.items())
        hint = (
            "both need the same number, because requests and actions are joined by partition: delete one and "
            "recreate it"
        )
        raise StreamlearnError(message, help=hint)


def _delete(folder: AppFolder, names: Sequence[str], yes: bool, json: bool) -> None:
    from streamlearn.topics import delete_topic

    rows = [row for row in (_row(folder, name, None, None) for name in names) if row["id"] != "missing"]
    listed = ", ".join(f"{row['topic']} ({counted(row['records'], 'record')})" for row in rows)
    if rows and not yes:
        message = f"this deletes {listed} at {rows[0]['url'].rpartition('/')[0]}"
        raise UsageError(message, help="add --yes to delete them; this cannot be undone")
    for row in rows:
        delete_topic(row["url"], folder.access)
    if json:
        print_json({"deleted": rows})
    else:
        typer.echo(f"deleted {listed}" if rows else "deleted none: the topics do not exist")
