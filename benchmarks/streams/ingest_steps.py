"""Steps of measured jobs of ingest beyond those of ingest: a counter at the end, and the time of the beginning."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from typing import Any

import apache_beam as beam

from streamlearn.apps import AppFolder
from streamlearn.ingest import ReadPlan
from streamlearn.ingest.beam.cut_lots import CutLots, lot_handing
from streamlearn.ingest.beam.source import read_events

__all__ = ["Beginning", "Count", "source_pipeline"]

_LOOK_S = 0.005


class Beginning:
    """The time of the first blob, from the reader's metric: a job starts long before it.

    It is printed on stdout at once, for jobs that are killed.
    """

    def __init__(self) -> None:
        self.wall_s = 0.0
        self.cpu_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="benchmark-beginning", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            if _blobs():
                self.wall_s, self.cpu_s = time.time(), time.process_time()
                print(json.dumps({"begun_s": self.wall_s}), flush=True)
                return


def _blobs() -> float:
    from prometheus_client import REGISTRY

    families = (family for family in REGISTRY.collect() if family.name == "streamlearn_ingest_blobs")
    return sum(sample.value for family in families for sample in family.samples if sample.name.endswith("_total"))


class Count(beam.DoFn):
    """Counts the events that arrive at lots."""

    events = 0
    last_s = 0.0

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan

    def process(self, element: tuple[int, bytes]) -> None:
        """Count the events of one lot."""
        Count.events += len(lot_handing(self._plan, in_process=True).take(element[1]))
        Count.last_s = time.time()


def source_pipeline(pipeline: Any, folder: AppFolder, plan: ReadPlan, changes: tuple[str, ...]) -> None:
    """Add the steps that read and cut events, and the counter."""
    read = read_events(plan, whole=True, in_process=True)
    plan = replace(plan, app=str(folder.folder), changes=changes)
    cut: Any = beam.ParDo(CutLots(plan, in_process=True))  # type: ignore[no-untyped-call]
    _ = pipeline | "Read" >> read | "Cut" >> cut | "Count" >> beam.ParDo(Count(plan))  # type: ignore[no-untyped-call]
