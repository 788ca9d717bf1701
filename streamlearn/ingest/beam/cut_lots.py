"""CutLots: the step that cuts blobs into the events of each lot, and writes dead letters."""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam

from streamlearn.apps import AppFolder
from streamlearn.ingest.beam.handover import Handover, open_tickets
from streamlearn.ingest.beam.source import blob_handing
from streamlearn.ingest.beam.state_cache import use_byte_sizes
from streamlearn.ingest.join.lot_events import LotEvents, decode_lot, encode_lot
from streamlearn.ingest.join.lots import LotCutter
from streamlearn.ingest.output.letter_box import LetterBox
from streamlearn.ingest.output.sink_counts import count_read
from streamlearn.ingest.reading.blob import Blob
from streamlearn.ingest.reading.meters import count_left_out
from streamlearn.ingest.reading.plan import ReadPlan

__all__ = ["CutLots", "CuttingStep", "cutter_of", "lot_handing"]


def cutter_of(folder: AppFolder, plan: ReadPlan) -> tuple[LotCutter, LetterBox]:
    """Return what cuts a plan's blobs, and what writes the dead letters."""
    lineage = plan.lineage
    names = (url.rpartition("/")[2] for url in (plan.impressions_url, plan.actions_url))
    topics = list(zip(names, (lineage.events_topic_id, lineage.actions_topic_id), strict=True))
    cutter = LotCutter(folder, lineage.lots_count, topics, plan.read_from_ms)
    return cutter, LetterBox(folder)


def lot_handing(plan: ReadPlan, *, in_process: bool) -> Handover[LotEvents]:
    """Return how a lot's events are handed on: as bytes, or by tickets."""
    return Handover(encode_lot, decode_lot, open_tickets(plan.progress_url, plan.run) if in_process else None)


# Without these types Beam pickles lots and events. With them it encodes integers and bytes.
@beam.typehints.with_output_types(tuple[int, bytes])
class CuttingStep(beam.DoFn):
    """A step that cuts blobs, as (lot, events of that lot).

    Guaranteed: the dead-letter topic has acknowledged the letters before the bundle ends.
    """

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan
        self._opened: tuple[LotCutter, LetterBox] | None = None

    def setup(self) -> None:
        """Load the application."""
        self._opened = cutter_of(self._plan.load_app(), self._plan)

    def finish_bundle(self) -> None:
        """Flush the letters."""
        assert self._opened is not None
        self._opened[1].flush()

    def teardown(self) -> None:
        """Close the dead-letter topic."""
        if self._opened is not None:
            self._opened[1].close()


class CutLots(CuttingStep):
    """Blobs in, (lot, events of that lot) out: as bytes, or as tickets if elements stay `in_process`."""

    def __init__(self, plan: ReadPlan, *, in_process: bool = False) -> None:
        super().__init__(plan)
        self._in_process = in_process
        self._handings: tuple[Handover[Blob], Handover[LotEvents]] | None = None

    def setup(self) -> None:
        """Load the application."""
        use_byte_sizes()
        super().setup()
        in_process = self._in_process
        self._handings = blob_handing(self._plan, in_process=in_process), lot_handing(self._plan, in_process=in_process)

    def process(self, element: bytes) -> Iterator[tuple[int, bytes]]:
        """Cut one blob."""
        assert self._opened is not None
        assert self._handings is not None
        (cutter, letters), (blobs, lots) = self._opened, self._handings
        cut = cutter.cut(blobs.take(element))
        letters.give(cut.failures)
        for why, count in (("before_start", cut.before_start), ("of_no_label", cut.of_no_label)):
            if count:
                count_left_out(why, count)
        count_read(cut.events)
        for events in cut.lots:
            yield events.lot, lots.give(events)
