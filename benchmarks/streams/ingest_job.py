"""Runs one job of ingest to its end; its counts and times are the last line of stdout, as JSON."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import apache_beam as beam

from benchmarks.streams.ingest_orphan import end_with_parent
from benchmarks.streams.ingest_steps import Beginning, Count, children_cpu_s, source_pipeline
from benchmarks.streams.per_event_beam import Seen, per_event_pipeline
from streamlearn.apps import load_app
from streamlearn.ingest import begin_run, run_samples
from streamlearn.ingest.beam.runners import runner_options

SHAPES = ("source", "samples", "per_event")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams.ingest_job", description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("app")
    parser.add_argument("--set", action="append", default=[], dest="changes")
    options, flags = parser.parse_known_args()
    end_with_parent()
    folder = load_app(Path(options.app), options.changes)
    begun_s = time.time()
    beginning = Beginning()
    counts: dict[str, float] = {}
    if options.shape == "per_event":
        with beam.Pipeline(options=runner_options(folder.settings.ingest, more=flags)) as pipeline:
            per_event_pipeline(pipeline, options.app, tuple(options.changes))
        beginning.wall_s = Seen.begun_s
        counts = {"rows": Seen.rows, "last_s": Seen.last_s}
    elif options.shape == "source":
        plan = replace(begin_run(folder), progress_url="")  # events that are only counted need no acknowledgement
        with beam.Pipeline(options=runner_options(folder.settings.ingest, more=flags)) as pipeline:
            source_pipeline(pipeline, folder, plan, tuple(options.changes))
        counts = {"events": Count.events, "last_s": Count.last_s}
    else:
        counts = dict(run_samples(folder, threading.Event(), changes=options.changes, more=flags).counts)
    ended_s, cpu_s = time.time(), time.process_time()
    beginning.close()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    counts |= {
        "started_s": begun_s,
        "begun_s": beginning.wall_s,
        "ended_s": ended_s,
        "cpu_s": cpu_s - beginning.cpu_s,
        "children_cpu_s": children_cpu_s() - beginning.children_cpu_s,
        "memory_bytes_max": usage.ru_maxrss * 1024,
    }
    print(json.dumps(counts), file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
