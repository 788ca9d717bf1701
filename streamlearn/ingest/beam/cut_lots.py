"""CutLots: the step that cuts blobs into the events of each lot, and sets aside what cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam

from streamlearn.apps import AppFolder, load_app
from streamlearn.ingest.beam.handover import Handing, open_tickets
from streamlearn.ingest.beam.source import blob_handing
from streamlearn.ingest.beam.state_cache import use_byte_sizes
from streamlearn.ingest.join.lot_events import LotEvents, decode_lot, encode_lot
from streamlearn.ingest.join.lots import LotCutter
from streamlearn.ingest.output.letter_box import LetterBox
from streamlearn.ingest.output.sink_counts import count_read
from streamlearn.ingest.reading.blob import Blob
from streamlearn.ingest.reading.meters import count_left_out
from streamlearn.ingest.reading.plan import ReadPlan

__all__ = ["CutLots", "cutter_of", "lot_handing"]


def cutter_of(folder: AppFolder, plan: ReadPlan) -> tuple[LotCutter, LetterBox]:
    """What cuts a plan's blobs, from its T0 on, and what takes what cannot be used."""
    topics = [
        (plan.impressions_url.rpartition("/")[2], plan.lineage.events_topic_id),
        (plan.actions_url.rpartition("/")[2], plan.lineage.actions_topic_id),
    ]
    cutter = LotCutter(folder, plan.lineage.lots_count, topics, plan.start_ms)
    return cutter, LetterBox(folder.topic_url("dead_letters"), folder.access)


def lot_handing(plan: ReadPlan, *, in_process: bool) -> Handing[LotEvents]:
    """How a lot's events are handed on: as bytes, or by tickets."""
    return Handing(encode_lot, decode_lot, open_tickets(plan.progress_url, plan.run) if in_process else None)


# Beam codes lots as integers and events as bytes, and pickles neither, only when it is told so here.
@beam.typehints.with_output_types(tuple[int, bytes])
class CutLots(beam.DoFn):
    """Blobs in, (lot, events of that lot) out: as bytes, or as tickets for them.

    Guaranteed: what is set aside is acknowledged by the dead-letter topic before the bundle ends.

    Args:
        plan: What is read.
        app: The application's folder, on the worker.
        changes: What `--set` says.
        in_process: Whether elements stay in the process, before this step and after it.
    """

    def __init__(self, plan: ReadPlan, app: str, changes: tuple[str, ...] = (), *, in_process: bool = False) -> None:
        self._plan, self._app, self._changes, self._in_process = plan, app, changes, in_process
        self._blobs: Handing[Blob] | None = None
        self._lots: Handing[LotEvents] | None = None
        self._cutter: LotCutter | None = None
        self._letters: LetterBox | None = None

    def setup(self) -> None:
        """Load the application."""
        use_byte_sizes()
        folder = load_app(Path(self._app), list(self._changes))
        self._cutter, self._letters = cutter_of(folder, self._plan)
        self._blobs = blob_handing(self._plan, in_process=self._in_process)
        self._lots = lot_handing(self._plan, in_process=self._in_process)

    def process(self, element: bytes) -> Iterator[tuple[int, bytes]]:
        """Cut one blob."""
        assert self._cutter is not None
        assert self._letters is not None
        assert self._blobs is not None
        assert self._lots is not None
        cut = self._cutter.cut(self._blobs.take(element))
        self._letters.give(cut.failures)
        for why, count in (("before_start", cut.before_start), ("of_no_label", cut.of_no_label)):
            if count:
                count_left_out(why, count)
        count_read(cut.events)
        for events in cut.lots:
            yield events.lot, self._lots.give(events)

    def finish_bundle(self) -> None:
        """Have the letters acknowledged."""
        assert self._letters is not None
        self._letters.flush()

    def teardown(self) -> None:
        """Let go of the dead-letter topic."""
        if self._letters is not None:
            self._letters.close()
