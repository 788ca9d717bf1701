"""Settings of the join: what its native core gets, and the step around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from streamlearn.events import Producer
from streamlearn.ingest import JoinPlan, ReadPlan, begin_run
from streamlearn.ingest.backfill.stretch import stretch_of
from streamlearn.ingest.beam import join_lots
from streamlearn.ingest.beam.cut_lots import cutter_of
from streamlearn.ingest.beam.join_lots import JoinLots
from streamlearn.ingest.join import core
from streamlearn.testing import small_impression
from tests.ingest.one_lot import State
from tests.ingest.place import reading, take
from tests.settings.conftest import Load
from tests.settings.probes import heeds, spied
from tests.settings.test_ingest import with_topics

ODD = (
    "join.pending_bytes_max=70_001", "join.process_bytes_max=90_001", "join.orphan_wait_s=7.5",
    "join.logged_share=0.625", "ingest.tick_s=0.125", "ingest.flush_s=3.5", "ingest.lots=1",
    "ingest.dead_share_max=0.375", "samples.message_rows_max=7", "topics.fsync=batch",
)  # fmt: skip


@contextmanager
def joining(small: Load) -> Iterator[tuple[JoinLots, ReadPlan]]:
    """The step that joins, set up as a worker does: it loads the application itself, with what `--set` said."""
    folder = with_topics(small(*ODD))
    changes = (f"topics.root={folder.settings.topics.root}", *ODD)
    plan = replace(begin_run(folder), app=str(folder.folder), changes=changes)
    step = JoinLots(plan)
    step.setup()
    try:
        yield step, plan
    finally:
        step.teardown()


@heeds("ingest.tick_s", "ingest.flush_s", "join.process_bytes_max", "samples.message_rows_max", "topics.fsync")
def test_the_step_that_joins_has_the_settings(small: Load) -> None:
    with joining(small) as (step, _):
        resources = step._ready()
        assert (resources.step._rules.tick_ms, resources.step._rules.progress_ms) == (125, 3_500)
        assert resources.step._rows_max == 7
        assert resources.shelf.share_bytes == 90_001
        assert resources.keeper._every_s == 3.5
        assert resources.keeper._log._writer._settings.fsync == "batch"


@heeds("ingest.dead_share_max")
def test_a_running_ingest_tells_of_dead_letters_beyond_the_setting(
    small: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    monkeypatch.setattr(join_lots, "RECENT", SimpleNamespace(share=asked.append))
    with joining(small) as (step, _):
        step._ready().keeper._dead_share()
    assert asked == [0.375]


@heeds("join.pending_bytes_max", "join.orphan_wait_s", "join.logged_share", "join.process_bytes_max")
def test_the_join_of_a_lot_has_the_settings(small: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = spied(monkeypatch, core, "native.JoinCore")
    with joining(small) as (step, plan):
        folder = small(*ODD)
        with Producer(folder) as producer:
            producer.impression(**small_impression(1) | {"event_time_ms": 1_700_000_000_000})
        cutter, letters = cutter_of(folder, plan)
        with reading(replace(plan, progress_url="")) as reader, closing(letters):
            (events,) = cutter.cut(take(reader)).lots
        resources = step._ready()
        resources.step.take_in(events.lot, events, State(), resources.sink.give)
        (entry,) = resources.shelf._entries.values()
        assert (entry.join.share_bytes, entry.join._own_bytes) == (90_001, 70_001)
    ((rules,), _) = cores[0]
    assert (rules.orphan_wait_ms, rules.share, rules.pending_bytes_max) == (7_500, 0.625, 70_001)


@heeds("join.orphan_wait_s")
def test_a_backfill_reads_as_far_around_a_stretch_as_actions_wait(small: Load) -> None:
    folder = small("join.orphan_wait_s=7.5")
    plan = JoinPlan.of(folder.app, "topic", folder.settings.join)
    stretch = stretch_of(plan, 0, 1_000_000)
    assert stretch.impressions_ms[1] == 1_000_000 + 7_500 + plan.slice_ms
    assert stretch.actions_ms[0] == -7_500 - plan.slice_ms
