"""`streamlearn demo`: the loop, as far as it is built, on this machine and with no service needed.

Today: a week of real behaviour is replayed through file topics; ingest joins it into samples meanwhile, on Prism; each
label is learned once; every value of a slot has a row on one of two shards; versions of them are published while they
learn, and judged; two nodes follow; a shard that is killed comes back with its rows; and a version is rolled back, in
so many milliseconds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.demo_progress import show_counts
from streamlearn.cli.options import JsonOption
from streamlearn.cli.table import print_json, print_table
from streamlearn.errors import StreamlearnError

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder
    from streamlearn.cli.demo_samples import DemoSamples
    from streamlearn.cli.demo_tables import DemoTables
    from streamlearn.replay import ReplayReport

__all__ = ["demo"]

_SHARDS = 2
_KUAIRAND = Path("examples/kuairand")
# Some of its actions come late, so that labels are corrected.
_KUAIRAND_OPTIONS = {"delayed": "0.05"}


def demo(
    app: Annotated[
        Path, typer.Argument(metavar="[APP]", help="An application with a history.", show_default=True)
    ] = _KUAIRAND,
    json: JsonOption = False,
) -> None:
    """Replay a history, join it into samples, let tables learn them, publish versions; and say what was there."""
    from streamlearn.apps import load_app
    from streamlearn.cli.demo_samples import DemoSamples
    from streamlearn.cli.demo_shards import DemoShards
    from streamlearn.cli.demo_tables import DemoTables
    from streamlearn.replay import open_replay_topics

    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="streamlearn-demo-") as folder, ExitStack() as ends:
        changes = (f"topics.root=file://{folder}/topics", "topics.time=event", "ingest.runner=prism")
        loaded, store = load_app(app, changes), f"{folder}/versions"
        with open_replay_topics(loaded):  # makes them
            DemoSamples.prepare(loaded)
        shards = ends.enter_context(closing(DemoShards(app, store, _SHARDS)))
        tables = ends.enter_context(closing(DemoTables(loaded, shards, store)))
        pool = ends.enter_context(ThreadPoolExecutor(1))
        replayed = pool.submit(_replay, loaded, app)
        samples = ends.enter_context(closing(DemoSamples(app, loaded, changes)))
        _learn(samples, tables)
        report, joined, learned = replayed.result(), samples.report(), samples.check()
        tables.finish()
        held = tables.facts()
    counts = joined["counts"]
    facts = _facts(report, joined, learned) | {"seconds in all": round(time.monotonic() - begin, 2)} | held
    if json:
        print_json(facts)
    else:
        print_table([{f"{loaded.app.name}: the loop so far": name, "": value} for name, value in facts.items()])
    _check(loaded, report, counts, learned)


def _replay(folder: AppFolder, path: Path) -> ReplayReport:
    from streamlearn.events import Producer
    from streamlearn.replay import Replayer, load_history, open_replay_topics

    options = _KUAIRAND_OPTIONS if path == _KUAIRAND else {}
    with (
        open_replay_topics(folder) as (impressions, actions),
        Producer(folder, impressions=impressions, actions=actions) as producer,
    ):
        return Replayer(load_history(path, options), producer, folder.settings.replay).run()


def _learn(samples: DemoSamples, tables: DemoTables) -> None:
    """Let tables learn all samples, while what ingest counts is shown."""
    with show_counts() as show:
        for one in samples.batches():
            tables.add(one)
            show(lambda: {**_live(samples.counts()), "versions": tables.published})


def _live(counts: Mapping[str, int]) -> dict[str, int]:
    """What of ingest's counts is shown while it runs."""
    return {
        "impressions": counts.get("impressions", 0),
        "joined rows": counts.get("rows", 0),
        "corrected": counts.get("rows_correction", 0),
        "duplicates": counts.get("impressions_duplicate", 0),
        "dead letters": counts.get("dead_letters", 0),
    }


def _facts(report: ReplayReport, joined: dict[str, Any], learned: dict[str, int]) -> dict[str, Any]:
    counts = joined["counts"]
    return {
        "impressions replayed": report.impressions,
        "actions replayed": report.actions,
        "replayed events/s": round(report.events_per_s),
        "impressions joined": counts["impressions"],
        "duplicate impressions": counts.get("impressions_duplicate", 0),
        "items shown": counts["items"] - counts.get("items_repeated", 0),
        "actions joined": counts["actions"],
        "duplicate actions": counts.get("actions_duplicate", 0),
        "dead letters": counts.get("dead_letters", 0),
        "rows of samples": counts["rows"],
        "rows that correct": counts.get("rows_correction", 0),
        "positives": counts["positives"],
        "negatives": counts["negatives"],
        "labels learned": learned["learn"],
        "labels corrected": learned["correct"],
        "seconds of ingest": round(joined["seconds"], 2),
    }


def _check(folder: AppFolder, report: ReplayReport, counts: dict[str, int], learned: dict[str, int]) -> None:
    sent, found = (report.impressions, report.actions), (counts["impressions"], counts["actions"])
    message = ""
    if sent != found or counts.get("dead_letters", 0):
        message = (
            f"{sent} impressions and actions were replayed, {found} joined; {counts.get('dead_letters', 0)} letters"
        )
    labels = folder.app.labels
    expected = (counts["items"] - counts.get("items_repeated", 0)) * len(labels)
    if all(label.sample_rate == 1 for label in labels) and learned["learn"] != expected:
        message = f"{learned['learn']} labels were learned, and there are {expected}"
    if message:
        raise StreamlearnError(message, help="this is a defect: please report it with this output")
    typer.echo(f"ok: all {sum(sent):,} events were joined, and each label was learned once", err=True)
