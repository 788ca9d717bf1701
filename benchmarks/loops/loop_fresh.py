"""Freshness of the loop: the time from when a row is due until every node answers with a version that learned it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.loops.loop_rows import Float64s, LoopRows, known_ms, learned_of, read_rows
from benchmarks.loops.loop_whole import Whole
from streamlearn.errors import ServiceError
from streamlearn.versions import History, open_store

__all__ = ["LoadPeriod", "figures_of", "freshness"]

Note = Callable[[str], None]
_LOOK_S = 0.1
_METER = "streamlearn_serving_freshness_seconds"


@dataclass(frozen=True)
class LoadPeriod:
    """The load and duration of a measurement.

    Attributes:
        rate: Due samples per second.
        warm_s: Duration of the warm-up.
        seconds: Duration of the measurement.
        interval_s: Time between versions.
        late_s_max: Limit of the wait for the last row after the end.
    """

    rate: float
    warm_s: float
    seconds: float
    interval_s: float
    late_s_max: float = 60.0


def freshness(whole: Whole, spell: LoadPeriod, events_of: Callable[[float], float], note: Note) -> dict[str, float]:
    """Produce at a steady rate, and find afterwards when each row was learned and served.

    Args:
        whole: The loop.
        spell: Load and duration.
        events_of: Returns the rate of events for a rate of samples.
        note: Called with lines of progress.

    Raises:
        ServiceError: The producer failed, or no samples were written.
    """
    # The first row is due after a wait. The producer runs until the last rows of the measurement are due.
    wait_s = float(whole.folder.app.groups[0].wait_s)
    begin_ms = time.time() * 1e3
    with whole.producing(events_of(spell.rate), wait_s + spell.warm_s + spell.seconds + spell.interval_s) as producer:
        ends_s = time.monotonic() + wait_s + spell.warm_s + spell.seconds + spell.interval_s + spell.late_s_max
        while producer.process.is_alive() and time.monotonic() < ends_s:
            time.sleep(_LOOK_S)
        if producer.process.exit_status != 0:
            producer.process.fail("the producer failed")
    sent_ms = read_rows(whole.folder).sent_ms
    sent_ms = sent_ms[sent_ms >= begin_ms]
    if not len(sent_ms):
        message = "no samples were written"
        raise ServiceError(message, help=f"see {whole.ingest.process.log}")
    # The producer takes some seconds to start: its first row tells when it began.
    first_ms = int(sent_ms.min()) + (wait_s + spell.warm_s) * 1e3
    last_ms = first_ms + spell.seconds * 1e3
    _wait_served(whole, last_ms, spell.late_s_max)
    rows = read_rows(whole.folder).due_between(first_ms, last_ms)
    note(f"{len(rows):,} rows were due")
    versions, written, served = learned_of(whole.folder), np.zeros(0), np.full(len(rows), -np.inf)
    for answers in whole.answers:
        written, answered = known_ms(rows, versions, answers.seen)
        served = np.maximum(served, answered)
    known = History(open_store(whole.folder.store_url), whole.folder.app.name).read()
    refused = sum(version.outcome == "rejected" for version in known)
    figures = figures_of(rows, written, served)
    figures |= {"due_samples_per_s": len(rows) / spell.seconds, "versions": len(versions), "versions_rejected": refused}
    return figures | _node_metric(whole)


def figures_of(rows: LoopRows, written_ms: Float64s, served_ms: Float64s) -> dict[str, float]:
    """Return percentiles of the seconds until rows are samples, in a version and served; and the number not served."""
    never = np.isnan(served_ms)
    figures = {"rows_never_served": float(never.sum())}
    stages = {"sample": rows.written_ms.astype(np.float64), "version": written_ms, "served": served_ms}
    for name, at_ms in stages.items():
        delay_s = (at_ms - rows.due_ms)[~never] / 1e3
        for share in (50, 99) if len(delay_s) else ():
            figures[f"event_to_{name}_p{share}_s"] = float(np.percentile(delay_s, share))
    return figures


def _wait_served(whole: Whole, due_ms: float, wait_s: float) -> None:
    """Wait until all nodes answer with versions that have learned the rows due before a time."""
    rows = read_rows(whole.folder)
    rows = rows.due_between(0, due_ms)
    until_s = time.monotonic() + wait_s
    while time.monotonic() < until_s:
        versions = learned_of(whole.folder)
        if all(not np.isnan(known_ms(rows, versions, answers.seen)[1]).any() for answers in whole.answers):
            return
        time.sleep(_LOOK_S * 5)


def _node_metric(whole: Whole) -> dict[str, float]:
    """Return the mean of the nodes' own freshness metric, over the whole run."""
    sums, counts = ([node.meter(f"{_METER}_{what}") or 0.0 for node in whole.nodes] for what in ("sum", "count"))
    return {"serving_freshness_mean_s": sum(sums) / sum(counts)} if sum(counts) else {}
