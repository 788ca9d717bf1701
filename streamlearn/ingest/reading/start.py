"""Start: from which event time a run begins, what it may go on from, and the run itself.

The position of ingest is not kept by a runner: it follows from what was acknowledged, so that any runner, or another
one, can go on.
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
from streamlearn.ingest.output.progress import Lineage, LotProgress, Standing
from streamlearn.ingest.output.progress_log import ProgressLog
from streamlearn.ingest.reading.plan import ReadLimits, ReadPlan
from streamlearn.ingest.reading.watermark import TimeRules
from streamlearn.topics import Topic, create_topic, open_topic

__all__ = ["begin_run", "check_lineage", "longest_window_ms", "plan_backfill", "start_ms"]

_LOG = logging.getLogger(__name__)
# Producers' clocks differ by less, and end marks let a run go up to what they wrote.
_AHEAD_MS_MAX = 300_000


def start_ms(
    watermarks_ms: Mapping[int, int], lots_count: int, longest_window_ms: int, out_of_orderness_ms: int
) -> int | None:
    """T0: the event time from which events are read again.

    Every sample due before the least watermark is acknowledged. What is due later is of impressions no older than the
    longest window before it; their records may be behind newer ones by the bound of disorder.

    Args:
        watermarks_ms: Of each lot that was heard of.
        lots_count: How many there are.
        longest_window_ms: Of all label groups.
        out_of_orderness_ms: How much later than a newer event an older one may come.

    Returns:
        Event time in ms; None when a lot was never heard of: everything there is has to be read.

    Examples:
        >>> start_ms({0: 900_000, 1: 800_000}, 2, longest_window_ms=600_000, out_of_orderness_ms=30_000)
        170000
        >>> start_ms({1: 800_000}, 2, longest_window_ms=600_000, out_of_orderness_ms=30_000) is None
        True
    """
    if not set(range(lots_count)) <= set(watermarks_ms):
        return None
    return min(watermarks_ms[lot] for lot in range(lots_count)) - longest_window_ms - out_of_orderness_ms


def longest_window_ms(folder: AppFolder) -> int:
    """The longest window of an application's label groups."""
    return max(max(group.wait_s, group.window_s) for group in folder.app.groups) * 1000


def check_lineage(found: Standing, lineage: Lineage, url: str, before: Lineage | None = None) -> None:
    """Refuse to go on from progress that says nothing of these topics and lots.

    Args:
        found: What the progress topic says.
        lineage: What samples are joined by now.
        url: The progress topic's.
        before: The same lineage as the release before wrote it, whose fingerprint knew no labels.

    Raises:
        ConfigError: It was made with another number of lots.
        TopicReplaced: It was made of other topics: one was deleted and created again.
    """
    for progress in found.lots.values():
        _check_one(progress, lineage, url)
    others = {one.lineage for one in found.lots.values()} - {lineage, before}
    if others:
        _LOG.warning(
            "the progress in %s has other features or windows: samples whose windows are still open are "
            "made with the current ones",
            url,
        )


def begin_run(folder: AppFolder, *, accept_lost: bool = False, clock: Clock = SYSTEM_CLOCK) -> ReadPlan:
    """Begin a run of ingest: take its number, end the one before, and say what it reads from where.

    Args:
        folder: The application.
        accept_lost: Begin where the topics still have records, even if some that are needed were deleted.
        clock: When it begins.

    Raises:
        ConfigError: The topics differ in their partitions; or the progress there is was made with other lots.
        TopicMissing: There are no events: `streamlearn topics APP --create N` makes their topics.
        TopicReplaced: The progress there is was made of other topics.
        StreamlearnError: Progress is ahead of the wall.
    """
    with ExitStack() as stack:
        topics = [
            stack.enter_context(open_topic(folder.topic_url(name), folder.access, clock=clock))
            for name in ("impressions", "actions")
        ]
        _check_partitions(*topics)
        lineage = _lineage(folder, *topics)
        url = folder.topic_url("progress")
        wanted = folder.topic_settings("progress", 1)
        log = ProgressLog(create_topic(url, wanted, folder.access, exist_ok=True, clock=clock), clock=clock)
        with log:
            before = msgspec.structs.replace(lineage, feature_fingerprint=folder.app.features.fingerprint)
            check_lineage(log.standing(), lineage, url, before)
            _check_ahead(folder, _start_of(folder, log.standing()), url, clock)
            run = log.begin(lineage)
            found = log.standing()  # after it: whoever it ends may have written until then
    begin_ms = _start_of(folder, found)
    _LOG.info("run %d of ingest reads from %s", run, "the beginning" if begin_ms is None else f"T0 = {begin_ms} ms")
    plan = _plan(folder, lineage, topics[0].partitions)
    return replace(plan, progress_url=url, run=run, start_ms=begin_ms, accept_lost=accept_lost)


def _start_of(folder: AppFolder, standing: Standing) -> int | None:
    watermarks = {lot: progress.watermark_ms for lot, progress in standing.lots.items()}
    disorder_ms = round(folder.settings.ingest.out_of_orderness_s * 1000)
    return start_ms(watermarks, folder.settings.ingest.lots, longest_window_ms(folder), disorder_ms)


def _check_ahead(folder: AppFolder, begin_ms: int | None, url: str, clock: Clock) -> None:
    """Refuse to leave out what is shown from now on: progress of a wall that was ahead."""
    if folder.settings.topics.time != "wall" or begin_ms is None:
        return
    ahead_ms = begin_ms - clock.wall_ms()
    if ahead_ms > _AHEAD_MS_MAX:
        message = f"{url} says to read from {begin_ms} ms on, {ahead_ms / 1000:.0f} s ahead of the wall clock"
        help = (
            "the clock of ingest was fast, or this one is slow. Set the clock, or start again after that many "
            "seconds; or delete the progress (streamlearn topics APP --delete --only progress --yes, then "
            "--create 1): ingest then joins all events again, and each row is still learned once"
        )
        raise StreamlearnError(message, help=help)


def plan_backfill(folder: AppFolder, *, clock: Clock = SYSTEM_CLOCK) -> ReadPlan:
    """What a backfill reads: it takes no run's number, which is 0, ends no run, and has no progress.

    Args:
        folder: The application.
        clock: When the topics are looked at.

    Raises:
        ConfigError: The topics differ in their partitions.
        TopicMissing: There are no events.
    """
    with ExitStack() as stack:
        topics = [
            stack.enter_context(open_topic(folder.topic_url(name), folder.access, clock=clock))
            for name in ("impressions", "actions")
        ]
        _check_partitions(*topics)
        return _plan(folder, _lineage(folder, *topics), topics[0].partitions)


def _plan(folder: AppFolder, lineage: Lineage, partitions: int) -> ReadPlan:
    settings = folder.settings.ingest
    disorder_ms = round(settings.out_of_orderness_s * 1000)
    return ReadPlan(
        impressions_url=folder.topic_url("impressions"),
        actions_url=folder.topic_url("actions"),
        progress_url="",
        partitions=partitions,
        access=folder.access,
        run=0,
        lineage=lineage,
        start_ms=None,
        accept_lost=False,
        rules=TimeRules(folder.settings.topics.time, disorder_ms, round(settings.ahead_s_max * 1000)),
        limits=_limits(folder, partitions),
    )


def _check_partitions(impressions: Topic, actions: Topic) -> None:
    if impressions.partitions != actions.partitions:
        message = (
            f"{impressions.url} has {impressions.partitions} partitions and {actions.url} has {actions.partitions}"
        )
        raise ConfigError(
            message,
            help="a request and its actions must be in the same partition: create both topics with the same number",
        )


def _lineage(folder: AppFolder, impressions: Topic, actions: Topic) -> Lineage:
    return Lineage(
        lots_count=folder.settings.ingest.lots,
        window_settings=folder.app.window_settings,
        feature_fingerprint=folder.app.samples_fingerprint,
        events_topic_id=impressions.topic_id,
        actions_topic_id=actions.topic_id,
    )


def _check_one(progress: LotProgress, lineage: Lineage, url: str) -> None:
    found = progress.lineage
    if found.lots_count != lineage.lots_count:
        message = f"{url} has the progress of {found.lots_count} lots, but ingest.lots is {lineage.lots_count}"
        hint = "set ingest.lots back, or delete the progress topic: ingest then reads and joins all events again"
        raise ConfigError(message, help=hint)
    ids = (found.events_topic_id, found.actions_topic_id)
    wanted = (lineage.events_topic_id, lineage.actions_topic_id)
    if ids != wanted:
        message = (
            f"{url} has the progress of event topics {' and '.join(ids)}; the current ones are {' and '.join(wanted)}"
        )
        raise TopicReplaced(
            message, help="the event topics were deleted and created again: delete the progress topic as well"
        )


def _limits(folder: AppFolder, partitions: int) -> ReadLimits:
    settings = folder.settings.ingest
    return ReadLimits(
        blob_bytes=settings.blob_bytes,
        prefetch_bytes=settings.prefetch_bytes,
        fetch_wait_ms=max(1, round(settings.fetch_wait_s * 1000)),
        idle_s=settings.idle_s,
        lead_ms=round(settings.lead_s * 1000),
        lead_bytes=settings.lead_bytes,
        read_ahead_bytes=max(1, settings.read_ahead_bytes // partitions),
        poll_s=settings.poll_s,
        bundle_blobs_max=settings.bundle_blobs_max,
        bundle_s_max=settings.bundle_s_max,
        acknowledged_every_s=settings.flush_s / 2,
    )
