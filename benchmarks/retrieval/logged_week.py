"""KuaiRand's week, learned by a trainer that publishes a version an hour of event time, and found by a node.

The node serves each version in turn. It is asked for the users of the positives that were shown after the version was
learned and before the next one, so no answer knows what it is held against. Popularity is counted up to the same times.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from benchmarks.histories.freshness_rows import Week, read_week
from benchmarks.nodes.serving_model import Pointing
from benchmarks.nodes.serving_nodes import ServingNode
from benchmarks.result import Result
from streamlearn.apps import AppFolder, load_app
from streamlearn.samples import SampleBatch, SampleCodec
from streamlearn.testing import ManualClock
from streamlearn.topics import TopicSettings, create_topic
from streamlearn.trainer import train
from streamlearn.trainer.intake.extract import rows_of
from streamlearn.trainer.intake.feed import Until
from streamlearn.trainer.towers.frequency import Frequency
from streamlearn.trainer.trainer_setup import ends_of
from streamlearn.versions import History, PointerLog, open_registry, open_store
from streamlearn.versions.pointer.mover import Mover

__all__ = ["copied_app", "measure", "retrieving_week", "write_samples"]

Note = Callable[[str], None]
Int64s = npt.NDArray[np.int64]

_EXAMPLE = Path(__file__).parents[2] / "examples" / "kuairand"
_RETRIEVAL = """
# Requests send these columns, which the declaration above would compute.
from dataclasses import replace as _replace

from streamlearn.features import Library, Retrieval

features = _replace(
    features,
    slots=tuple(_replace(slot, computed=None) for slot in features.slots),
    dense=tuple(_replace(column, computed=None) for column in features.dense),
)
retrieval = Retrieval(
    label="click",
    user=("user_id", "tab", "pause", "since_click", "active_degree", "onehot_feat1", "watched"),
    item=("video_id", "author_id", "music_id", "tags", "video_type", "duration_bucket"),
    library=Library(expire_s=30 * 86_400),
)
app = _replace(app, features=features, retrieval=retrieval)
"""
_SETTINGS = (
    "front.deadline_ms=30000",
    "publisher.publish_interval_s=3600",
    "replica.beat_s=0.25",
    "tables.rates={users = 0.5, towers = 0.1}",
)
# A message is a step, so that a version has learned whole messages.
_MESSAGE_ROWS, _HOUR_MS, _DAY_MS = 256, 3_600_000, 86_400_000
_HALF_LIFE_MS, _K, _TOPS = 6 * _HOUR_MS, 500, (50, 100, 500)
_DAYS, _QUICK_DAYS, _LAST_DAYS = 7, 1, 2
_WAIT_S = 120.0


@dataclass(frozen=True)
class _RetrievingApp:
    """An application and its registry, as `ServingNode` takes them."""

    folder: AppFolder
    registry_url: str


@dataclass(frozen=True)
class _Positives:
    """What was chosen in the days that count, in the order of time.

    Attributes:
        row: int64[n], the sample in the week.
        request: int64[n], its request.
        item: int64[n], the id.
        shown_ms: int64[n].
    """

    row: Int64s
    request: Int64s
    item: Int64s
    shown_ms: Int64s


def measure(note: Note, result: Result, *, quick: bool) -> None:
    """Measure the hit rates of a node, of popularity, and of a node whose towers learned without the correction."""
    for prefix, is_corrected in (("kuairand", True), ("kuairand_without_logq", False))[: 1 if quick else None]:
        with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as place:
            folder, week = retrieving_week(Path(place), _QUICK_DAYS if quick else _DAYS)
            write_samples(folder, [week.batch])
            note(f"{prefix}: learning {len(week.batch):,} samples")
            uncorrected = patch.object(Frequency, "chances", lambda self, keys, step, *, come: np.ones(len(keys)))
            with nullcontext() if is_corrected else uncorrected:
                _learn(folder)
            positives = _positives(week, 1 if quick else _LAST_DAYS, 8 if quick else 1)
            note(f"{prefix}: asking for the users of {len(positives.item):,} positives")
            ranks, learned_ms = _asked(_RetrievingApp(folder, f"sqlite://{place}/registry.db"), week, positives, note)
            rates = {"": ranks}
            if is_corrected:
                rates["_popular"] = _popular(week, positives, learned_ms)
                rates["_popular_at_once"] = _popular(week, positives, positives.shown_ms)
            for name, of_positives in rates.items():
                for top in _TOPS:
                    result.figures[f"{prefix}{name}_hr_{top}"] = float(np.mean(of_positives < top))
    result.figures["kuairand_positives"] = float(len(positives.item))
    figures = result.figures
    result.ratios["kuairand_hr_100_to_popularity"] = figures["kuairand_hr_100"] / figures["kuairand_popular_hr_100"]


def copied_app(example: Path, place: Path, text: str, changes: Sequence[str] = ()) -> AppFolder:
    """Return an example with more text at its declaration, from a copy whose topics and store are its own."""
    shutil.copytree(example, place / "app", ignore=shutil.ignore_patterns("__pycache__", "data"))
    with (place / "app" / "app.py").open("a") as declaration:
        declaration.write(text)
    store = (f"versions.store={place}/store", f"registry.url=sqlite://{place}/registry.db")
    return load_app(place / "app", [*changes, *store])


def retrieving_week(place: Path, days: int) -> tuple[AppFolder, Week]:
    """Return the application with retrieval in a folder, and the samples of its first days."""
    folder = copied_app(_EXAMPLE, place, _RETRIEVAL, _SETTINGS)
    declared = load_app(_EXAMPLE, [])
    week = read_week(replace(declared, app=replace(declared.app, retrieval=folder.app.retrieval)))
    header = replace(week.batch.header, feature_fingerprint=folder.app.samples_fingerprint)
    end_ms = _midnight(int(week.shown_ms[0])) + (days + 1) * _DAY_MS
    kept = np.flatnonzero(week.shown_ms < end_ms)
    batch = replace(rows_of(week.batch, kept), header=header)
    places = week.places[np.unique(week.batch.request_index[kept])]
    return folder, replace(
        week, batch=batch, shown_ms=week.shown_ms[kept], settled_ms=week.settled_ms[kept], places=places
    )


def _midnight(time_ms: int) -> int:
    return time_ms // _DAY_MS * _DAY_MS


def write_samples(folder: AppFolder, batches: Iterable[SampleBatch]) -> None:
    """Write the samples in the order in which they are known."""
    create_topic(folder.topic_url("items"), folder.topic_settings("items", 1), folder.access).close()
    codec = SampleCodec(folder.app, folder.settings.samples)
    with (
        create_topic(folder.topic_url("samples"), TopicSettings(partitions=1, retention_ms=-1)) as topic,
        topic.writer() as writer,
    ):
        for batch in batches:
            for begin in range(0, len(batch), _MESSAGE_ROWS):
                some = rows_of(batch, np.arange(begin, min(begin + _MESSAGE_ROWS, len(batch))))
                watermark_ms = int(some.settle_time_ms[-1])
                writer.send(0, codec.encode(replace(some, header=replace(some.header, watermark_ms=watermark_ms))))
        writer.flush()


def _learn(folder: AppFolder) -> None:
    """Train to the end. The clock of the trainer is event time, and stops while a version is written."""
    clock, begin_ms = ManualClock(), list[int]()

    def show(trainer: Any) -> None:
        if trainer.reached is None or trainer.reached.clock_ms is None:
            return
        begin_ms.append(trainer.reached.clock_ms)
        ahead_s = (trainer.reached.clock_ms - begin_ms[0]) / 1e3 - clock.monotonic_s()
        del begin_ms[1:]
        clock.sleep(max(0.0, ahead_s))
        while trainer.publisher.is_busy:
            time.sleep(0.002)

    train(folder, threading.Event(), until=lambda topic: Until(ends_of(topic, "end")), show=show, clock=clock)


def _positives(week: Week, days: int, every: int) -> _Positives:
    """Return each `every`-th click of the last days."""
    (label,) = (one for one in week.batch.labels if one.name == "click")
    begin_ms = _midnight(int(week.shown_ms[-1])) - (days - 1) * _DAY_MS
    rows = np.flatnonzero((label.value != 0) & (week.shown_ms >= begin_ms))[::every]
    assert week.batch.item_ids is not None
    ids = np.array(week.batch.item_ids.take(rows).listed(), np.int64)
    return _Positives(rows, week.batch.request_index[rows].astype(np.int64), ids, week.shown_ms[rows])


def _asked(served: _RetrievingApp, week: Week, positives: _Positives, note: Note) -> tuple[Int64s, Int64s]:
    """Return the rank of each positive by what the node answers, and up to when the answering version had learned."""
    folder, place = served.folder, served.folder.folder.parent
    columns = folder.app.retrieval.user if folder.app.retrieval else ()
    places = week.places[positives.request]
    store, name = open_store(folder.store_url), folder.app.name
    ranks, learned_ms = np.full(len(positives.item), _K), np.zeros(len(positives.item), np.int64)
    history = History(store, name)
    known = [entry for entry in history.read() if entry.watermark_ms is not None]
    times_ms = np.array([entry.watermark_ms for entry in known])
    wanted = np.searchsorted(times_ms, positives.shown_ms, "left") - 1
    with open_registry(served.registry_url, name) as registry:
        pointing = Pointing(Mover(PointerLog(store, name), registry), history)
        pointing.back(known[wanted[0]].version)
        with ServingNode(served, "node", place, _SETTINGS) as node:
            host, _, port = node.http.rpartition(":")
            with closing(HTTPConnection(host, int(port), timeout=_WAIT_S)) as connection:
                for at in np.unique(wanted).tolist():
                    if at != wanted[0]:
                        pointing.forward(known[at].version)
                    rows = np.flatnonzero(wanted == at)
                    for row in rows.tolist():
                        user = {name: _value(week.shown, f"user.{name}", int(places[row])) for name in columns}
                        answer = _answer(connection, user)
                        is_before = known[at].metrics["samples"] <= positives.row[row]
                        if answer["version"] != known[at].version or not is_before:
                            raise AssertionError((answer["version"], known[at]))
                        found = [item["id"] for item in answer["items"]]
                        if (item := int(positives.item[row])) in found:
                            ranks[row] = found.index(item)
                    learned_ms[rows] = times_ms[at]
    note(f"{len(np.unique(wanted))} versions answered")
    return ranks, learned_ms


def _answer(connection: HTTPConnection, user: Mapping[str, Any]) -> Any:
    body = json.dumps({"user": user, "k": _K})
    connection.request("POST", "/retrieve", body, {"content-type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    if response.status != 200:
        raise AssertionError(text)
    return json.loads(text)


def _value(columns: Mapping[str, npt.NDArray[Any]], name: str, row: int) -> Any:
    """Return the value of an event's column as requests have it."""
    for mark in ("$", "[]"):
        if (begins := columns.get(f"{name}{mark}")) is not None:
            part = columns[name][begins[row] : begins[row + 1]]
            return bytes(part).decode() if mark == "$" else part.tolist()
    return columns[name][row].item()


def _popular(week: Week, positives: _Positives, learned_ms: Int64s) -> Int64s:
    """Return the rank of each positive by counts of clicks that were known at its time, which halve every six hours.

    Of items with as many, half are before it. An item that was not shown by then is not found.
    """
    assert week.batch.item_ids is not None
    ids, item = np.unique(np.array(week.batch.item_ids.listed(), np.int64), return_inverse=True)
    (label,) = (one for one in week.batch.labels if one.name == "click")
    first_ms, counts, row = np.full(len(ids), np.iinfo(np.int64).max), np.zeros(len(ids)), 0
    ranks = np.zeros(len(positives.item), np.int64)
    begin_ms = int(week.settled_ms[0])
    for at, (own, until_ms) in enumerate(zip(np.searchsorted(ids, positives.item), learned_ms, strict=True)):
        while row < len(item) and week.settled_ms[row] <= until_ms:
            first_ms[item[row]] = min(first_ms[item[row]], week.settled_ms[row])
            if label.value[row]:
                counts[item[row]] += 2.0 ** ((week.settled_ms[row] - begin_ms) / _HALF_LIFE_MS)
            row += 1
        as_many = np.count_nonzero((counts == counts[own]) & (first_ms <= until_ms))
        ranks[at] = np.count_nonzero(counts > counts[own]) + as_many // 2
        if first_ms[own] > until_ms:
            ranks[at] = len(ids)
    return ranks
