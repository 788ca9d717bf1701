"""Steps of measured jobs of ingest beyond those of ingest: a counter at the end, and the time of the beginning."""

from __future__ import annotations

import json
import os
import resource
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam

from streamlearn.apps import AppFolder
from streamlearn.ingest import ReadPlan
from streamlearn.ingest.beam.cut_lots import CutLots, lot_handing
from streamlearn.ingest.beam.source import read_events

__all__ = ["Beginning", "Count", "children_cpu_s", "source_pipeline"]

_LOOK_S = 0.005
# Of a process's `stat`, counted from behind its name: its parent, and its ticks in user and in system mode.
_PARENT, _USER, _SYSTEM = 1, 11, 12


def children_cpu_s() -> float:
    """Return the processor time of this process's children, those that ended and those that run."""
    ended, ticks = resource.getrusage(resource.RUSAGE_CHILDREN), 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[_PARENT]) == os.getpid():
            ticks += int(fields[_USER]) + int(fields[_SYSTEM])
    return ended.ru_utime + ended.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


class Beginning:
    """The time of the first blob, from the reader's metric: a job starts long before it.

    It is printed on stdout at once, for jobs that are killed.
    """

    def __init__(self) -> None:
        self.wall_s = 0.0
        self.cpu_s = self.children_cpu_s = 0.0
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
                self.children_cpu_s = children_cpu_s()
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
