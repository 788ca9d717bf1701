"""`streamlearn demo`: the loop, as far as it is built, on this machine and with no service needed.

Today: a week of real behaviour is replayed through file topics; ingest joins it into samples meanwhile, on Prism; a
model learns them as they come, its rows on two shards, each label once; versions of it are published and judged; two
nodes answer requests with them; a shard is killed, and training goes on; and a version is rolled back, in so many
milliseconds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
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
    from streamlearn.cli.demo_model import DemoModel
    from streamlearn.cli.demo_samples import DemoSamples
    from streamlearn.replay import History, ReplayReport

__all__ = ["demo"]

_SHARDS = 2
_INTERVAL_S, _STEP_ROWS, _LOOK_S = 2.0, 1_024, 0.05
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
    from streamlearn.replay import open_replay_topics
    from streamlearn.settings import TelemetrySettings
    from streamlearn.telemetry import set_up_logging

    set_up_logging(TelemetrySettings(log_level="error"))
    from streamlearn.cli.demo_model import DemoModel  # TensorFlow speaks while it is loaded

    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="streamlearn-demo-") as folder, ExitStack() as ends:
        changes = (f"topics.root=file://{folder}/topics", "topics.time=event", "ingest.runner=prism")
        loaded, store = load_app(app, changes), f"{folder}/versions"
        with open_replay_topics(loaded):  # makes them
            DemoSamples.prepare(loaded)
        shards = ends.enter_context(closing(DemoShards(app, store, _SHARDS)))
        trained = load_app(app, (*changes, *_trained(folder, store, shards.addresses)))
        model = ends.enter_context(closing(DemoModel(trained, shards, _history(app))))
        pool = ends.enter_context(ThreadPoolExecutor(1))
        replayed = pool.submit(_replay, loaded, app)
        samples = ends.enter_context(closing(DemoSamples(app, changes)))
        _watch(samples, model)
        report, joined = replayed.result(), samples.report()
        model.finish()
        learned = model.learned
        held = model.facts()
    counts = joined["counts"]
    facts = _facts(report, joined, learned) | {"seconds in all": round(time.monotonic() - begin, 2)} | held
    if json:
        print_json(facts)
    else:
        print_table([{f"{loaded.app.name}: the loop so far": name, "": value} for name, value in facts.items()])
    _check(loaded, report, counts, learned)


def _trained(folder: str, store: str, addresses: Sequence[str]) -> tuple[str, ...]:
    """What `--set` says of training: it publishes every other second, onto shards that are elsewhere."""
    quoted = ", ".join(f'"{one}"' for one in addresses)
    return (
        f"versions.store={store}",
        f"registry.url=sqlite://{folder}/registry.db",
        f"ps.addresses=[{quoted}]",
        f"publisher.publish_interval_s={_INTERVAL_S}",
        f"trainer.step_rows={_STEP_ROWS}",
    )


def _history(path: Path) -> History:
    from streamlearn.replay import load_history

    return load_history(path, _KUAIRAND_OPTIONS if path == _KUAIRAND else {})


def _replay(folder: AppFolder, path: Path) -> ReplayReport:
    from streamlearn.events import Producer
    from streamlearn.replay import Replayer, open_replay_topics

    with (
        open_replay_topics(folder) as (impressions, actions),
        Producer(folder, impressions=impressions, actions=actions) as producer,
    ):
        return Replayer(_history(path), producer, folder.settings.replay).run()


def _watch(samples: DemoSamples, model: DemoModel) -> None:
    """Show what ingest counts, and how far training is, until all events are joined."""
    with show_counts() as show:
        while not samples.has_ended:
            show(lambda: {**_live(samples.counts()), **model.live()})
            time.sleep(_LOOK_S)


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
        "samples learned": learned["samples"],
        "labels learned": learned["labels_learned"],
        "labels corrected": learned["labels_corrected"],
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
    if all(label.sample_rate == 1 for label in labels) and learned["labels_learned"] != expected:
        message = f"{learned['labels_learned']} labels were learned, and there are {expected}"
    if message:
        raise StreamlearnError(message, help="this is a defect: please report it with this output")
    typer.echo(f"ok: all {sum(sent):,} events were joined, and each label was learned once", err=True)
