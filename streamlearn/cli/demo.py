"""`streamlearn demo`: the loop, as far as it is built, on this machine and with no service needed.

Today: a week of real behaviour is replayed through file topics, read back, checked and summed up; every value of a
slot that was shown has a row on one of two shards; versions of them are published while they learn, and judged; two
nodes follow; a shard that is killed comes back with its rows; and a version is rolled back, in so many milliseconds.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.options import JsonOption
from streamlearn.cli.table import print_json, print_table
from streamlearn.cli.units import counted
from streamlearn.errors import StreamlearnError

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder
    from streamlearn.cli.demo_tables import DemoTables
    from streamlearn.events import Events
    from streamlearn.replay import ReplayReport

__all__ = ["demo"]

READ_RECORDS = 64
_SHARDS = 2


@dataclass
class _Seen:
    """What reading the topics back showed."""

    impressions: int = 0
    items: int = 0
    requests: set[bytes] = field(default_factory=set)
    actions: Counter[str] = field(default_factory=Counter)
    heartbeats: int = 0
    ends: int = 0
    failures: int = 0
    records: int = 0
    bytes: int = 0
    seconds: float = 0.0


def demo(
    app: Annotated[
        Path, typer.Argument(metavar="[APP]", help="An application with a history.", show_default=True)
    ] = Path("examples/kuairand"),
    json: JsonOption = False,
) -> None:
    """Replay a history through file topics, read it back into tables, and say what was there."""
    from streamlearn.apps import load_app
    from streamlearn.cli.demo_shards import DemoShards
    from streamlearn.cli.demo_tables import DemoTables

    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="streamlearn-demo-") as folder:
        loaded = load_app(app, [f"topics.root=file://{folder}/topics", "topics.time=event"])
        store = f"{folder}/versions"
        with closing(DemoShards(app, store, _SHARDS)) as shards, closing(DemoTables(loaded, shards, store)) as tables:
            report = _replay(loaded, app)
            seen = _read_back(loaded, tables)
            tables.finish()
            held = tables.facts()
    facts = _facts(report, seen, time.monotonic() - begin) | held
    if json:
        print_json(facts)
    else:
        rows = [{f"{loaded.app.name}: the loop so far": name, "": value} for name, value in facts.items()]
        print_table(rows)
    _check(report, seen)


def _replay(folder: AppFolder, path: Path) -> ReplayReport:
    from streamlearn.events import Producer
    from streamlearn.replay import Replayer, load_history, open_replay_topics

    with (
        open_replay_topics(folder) as (impressions, actions),
        Producer(folder, impressions=impressions, actions=actions) as producer,
    ):
        return Replayer(load_history(path), producer, folder.settings.replay).run()


def _read_back(folder: AppFolder, tables: DemoTables) -> _Seen:
    from streamlearn.events import EventDecoder

    decoder = EventDecoder.of(folder)
    seen, begin = _Seen(), time.monotonic()
    for name in ("impressions", "actions"):
        with folder.open_topic(name) as topic, topic.reader() as reader:
            for partition in range(topic.partitions):
                at, end = reader.earliest(partition), reader.end(partition)
                while at < end:
                    records = reader.read(partition, at, max_records=READ_RECORDS)
                    seen.records += len(records)
                    seen.bytes += sum(len(value or b"") for value in records.values)
                    events = decoder.decode(records.values)
                    _add(seen, events)
                    tables.add(events.impressions)
                    at = records.next_offset
    seen.seconds = time.monotonic() - begin - tables.seconds
    return seen


def _add(seen: _Seen, events: Events) -> None:
    from streamlearn.schemas.fixed import CONTROL_KINDS

    shown = events.impressions
    seen.impressions += len(shown)
    seen.items += int(shown.columns["items[]"][-1])
    seen.requests.update(text.encode() for text in shown.texts("request_id"))
    seen.actions.update(events.actions.texts("action"))
    kinds = events.controls.columns["kind"]
    seen.heartbeats += int((kinds == CONTROL_KINDS.index("HEARTBEAT")).sum())
    seen.ends += int((kinds == CONTROL_KINDS.index("END")).sum())
    seen.failures += len(events.failures)


def _facts(report: ReplayReport, seen: _Seen, seconds: float) -> dict[str, Any]:
    actions = {f"actions: {name}": count for name, count in sorted(seen.actions.items())}
    return {
        "impressions replayed": report.impressions,
        "actions replayed": report.actions,
        "replayed events/s": round(report.events_per_s),
        "impressions read back": seen.impressions,
        "items shown": seen.items,
        "distinct requests": len(seen.requests),
        "repeated impressions": seen.impressions - len(seen.requests),
        **actions,
        "heartbeats": seen.heartbeats,
        "end marks": seen.ends,
        "unreadable": seen.failures,
        "records": seen.records,
        "bytes": seen.bytes,
        "read back events/s": round((seen.impressions + seen.actions.total()) / seen.seconds),
        "seconds in all": round(seconds, 2),
    }


def _check(report: ReplayReport, seen: _Seen) -> None:
    sent, found = (report.impressions, report.actions), (seen.impressions, seen.actions.total())
    if sent != found or seen.failures:
        message = f"{sent} impressions and actions were replayed, {found} read back, {seen.failures} unreadable"
        raise StreamlearnError(message, help="this is a defect: please report it with this output")
    typer.echo(f"ok: all {counted(sum(sent), 'event')} came back", err=True)
