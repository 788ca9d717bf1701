"""Start: from which event time a run begins, which progress it may continue from, and the run itself.

The runner does not keep ingest's position: it follows from the acknowledged progress, so that any runner can continue.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

import msgspec

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import ConfigError, StreamlearnError, TopicReplaced
from streamlearn.ingest.join.plan import JoinPlan
from streamlearn.ingest.output.progress import Lineage, Standing
from streamlearn.ingest.output.progress_log import ProgressLog
from streamlearn.ingest.reading.plan import ReadPlan
from streamlearn.ingest.reading.watermark import TimeRules
from streamlearn.topics import create_topic, open_topic

__all__ = ["begin_run", "plan_backfill", "start_ms"]

_LOG = logging.getLogger(__name__)
# The clocks of two machines of ingest differ by less.
_AHEAD_MS_MAX = 300_000


def start_ms(
    watermarks_ms: Mapping[int, int], lots_count: int, longest_window_ms: int, out_of_orderness_ms: int
) -> int | None:
    """Return T0, the event time from which events are read again; None if a lot has no progress yet: read everything.

    Every sample due before the least watermark is acknowledged. Samples due later belong to impressions no older than
    the longest window before it, and their records may come up to `out_of_orderness_ms` later than newer ones.

    Examples:
        >>> start_ms({0: 900_000, 1: 800_000}, 2, longest_window_ms=600_000, out_of_orderness_ms=30_000)
        170000
        >>> start_ms({1: 800_000}, 2, longest_window_ms=600_000, out_of_orderness_ms=30_000) is None
        True
    """
    if not set(range(lots_count)) <= set(watermarks_ms):
        return None
    return min(watermarks_ms[lot] for lot in range(lots_count)) - longest_window_ms - out_of_orderness_ms


def begin_run(folder: AppFolder, *, accept_lost: bool = False, clock: Clock = SYSTEM_CLOCK) -> ReadPlan:
    """Begin a run of ingest: take its number, end the run before, and return the plan of reading.

    With `accept_lost`, the run begins where the topics still have records, even if records that it needs were deleted.

    Raises:
        ConfigError: The topics differ in their partitions; or the progress was made with another number of lots.
        TopicMissing: There are no events: `streamlearn topics APP --create N` makes their topics.
        TopicReplaced: The progress belongs to other topics.
        StreamlearnError: Progress is ahead of the wall clock.
    """
    plan = plan_backfill(folder, clock=clock)
    join_plan = JoinPlan.of(folder.app, plan.lineage.events_topic_id, folder.settings.join)
    window_ms, early_ms = join_plan.longest_window_ms, join_plan.early_ms
    url, settings = folder.topic_url("progress"), folder.topic_settings("progress", 1)
    topic = create_topic(url, settings, folder.access, exist_ok=True, clock=clock)
    with ProgressLog(topic, folder.writer_settings, clock=clock) as log:
        _check_lineage(log.standing(), plan.lineage, url, folder.app.features.fingerprint)
        _check_ahead(folder, log.standing(), url, _start_of(folder, log.standing(), window_ms), clock)
        inherited_ms = max(window_ms, log.standing().open_window_ms)
        run = log.begin(plan.lineage, window_ms, inherited_ms)
        standing = log.standing()  # read again: the run before may have written until it was ended
    begin_ms = _start_of(folder, standing, inherited_ms)
    _LOG.info("run %d of ingest reads from %s", run, "the beginning" if begin_ms is None else f"T0 = {begin_ms} ms")
    begun = replace(plan, progress_url=url, run=run, start_ms=begin_ms, accept_lost=accept_lost, read=standing.read)
    return replace(begun, early_ms=early_ms, context_ms=window_ms)


def _start_of(folder: AppFolder, standing: Standing, window_ms: int) -> int | None:
    watermarks = {lot: progress.watermark_ms for lot, progress in standing.lots.items()}
    disorder_ms = round(folder.settings.ingest.out_of_orderness_s * 1000)
    return start_ms(watermarks, folder.settings.ingest.lots, window_ms, disorder_ms)


def _check_ahead(folder: AppFolder, standing: Standing, url: str, begin_ms: int | None, clock: Clock) -> None:
    """Refuse progress of a wall clock that was ahead: rows were closed too early, and events from now on are left out.

    After end marks, lots close all windows ahead of time. Then only a beginning in the future is refused.
    """
    if folder.settings.topics.time != "wall" or begin_ms is None:
        return
    has_end_marks = standing.stopped < standing.run
    reached = [
        progress.watermark_ms
        for lot, progress in standing.lots.items()
        if not (has_end_marks and standing.ended.get(lot) == progress.ingest_run)
    ]
    ahead_ms = max([begin_ms, *reached]) - clock.wall_ms()
    if ahead_ms > _AHEAD_MS_MAX:
        message = f"the progress in {url} is {ahead_ms / 1000:.0f} s ahead of the wall clock"
        help = (
            "the clock of ingest was fast, or this one is slow. Set the clock, or start again after that many "
            "seconds; or delete the progress (`streamlearn topics APP --delete --only progress --yes`, then "
            "`streamlearn topics APP --create 1 --only progress`): ingest then joins "
            "all events again, and each row is still learned once"
        )
        raise StreamlearnError(message, help=help)


def plan_backfill(folder: AppFolder, *, clock: Clock = SYSTEM_CLOCK) -> ReadPlan:
    """Return the plan of a backfill, which has run number 0, ends no run, and has no progress.

    Raises:
        ConfigError: The topics differ in their partitions.
        TopicMissing: There are no events.
    """
    with ExitStack() as stack:
        impressions, actions = (
            stack.enter_context(open_topic(folder.topic_url(name), folder.access, clock=clock))
            for name in ("impressions", "actions")
        )
        if impressions.partitions != actions.partitions:
            message = (
                f"{impressions.url} has {impressions.partitions} partitions and {actions.url} has {actions.partitions}"
            )
            hint = "a request and its actions must be in the same partition: create both topics with the same number"
            raise ConfigError(message, help=hint)
    app, settings = folder.app, folder.settings.ingest
    ids = impressions.topic_id, actions.topic_id
    disorder_ms = round(settings.out_of_orderness_s * 1000)
    return ReadPlan(
        impressions_url=folder.topic_url("impressions"),
        actions_url=folder.topic_url("actions"),
        progress_url="",
        partitions=impressions.partitions,
        access=folder.access,
        run=0,
        lineage=Lineage(settings.lots, app.window_settings, app.samples_fingerprint, *ids),
        start_ms=None,
        accept_lost=False,
        rules=TimeRules(folder.settings.topics.time, disorder_ms, round(settings.ahead_s_max * 1000)),
        settings=settings,
        writing=folder.writer_settings,
    )


def _check_lineage(standing: Standing, lineage: Lineage, url: str, old_fingerprint: str) -> None:
    """Refuse progress of other topics or lots. The previous release wrote a fingerprint without labels."""
    known = {progress.lineage for progress in standing.lots.values()}
    current_ids = (lineage.events_topic_id, lineage.actions_topic_id)
    for other in known:
        if other.lots_count != lineage.lots_count:
            message = f"{url} has the progress of {other.lots_count} lots, but ingest.lots is {lineage.lots_count}"
            hint = "set ingest.lots back, or delete the progress topic: ingest then reads and joins all events again"
            raise ConfigError(message, help=hint)
        ids = (other.events_topic_id, other.actions_topic_id)
        if ids != current_ids:
            current = " and ".join(current_ids)
            message = f"{url} has the progress of event topics {' and '.join(ids)}; the current ones are {current}"
            hint = "the event topics were deleted and created again: delete the progress topic as well"
            raise TopicReplaced(message, help=hint)
    if known - {lineage, msgspec.structs.replace(lineage, feature_fingerprint=old_fingerprint)}:
        _LOG.warning(
            "the progress in %s has other features or windows: samples whose windows are still open are "
            "made with the current ones",
            url,
        )
