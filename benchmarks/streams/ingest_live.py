"""Produces live traffic at a steady rate: the time of each event is the wall time at which it is sent."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path

from benchmarks.streams.ingest_events import history_of
from benchmarks.streams.ingest_orphan import end_with_parent
from streamlearn.apps import load_app
from streamlearn.events import Producer
from streamlearn.replay import Replayer

__all__: list[str] = []


def main() -> None:
    """Parse the command line, produce, and print the counts as a line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams.ingest_live", description=__doc__)
    parser.add_argument("app")
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1, help="seed of the traffic; request ids differ between seeds")
    parser.add_argument("--go-on", action="store_true", help="write no end marks")
    options = parser.parse_args()
    end_with_parent()
    folder = load_app(Path(options.app), options.changes)
    with Producer(folder) as producer:
        begin_ms = time.time_ns() // 1_000_000
        events = round(options.rate * options.seconds)
        history = history_of(events, options.rate, start_ms=begin_ms, seed=options.seed)
        # Actions would continue for a window after the last impression: cut them off.
        stop = threading.Event()
        over = threading.Timer(options.seconds, stop.set)
        over.start()
        report = Replayer(history, producer, folder.settings.replay).run(speed=1.0, stop=stop)
        over.cancel()
        if not report.ended and not options.go_on:
            producer.end(time.time_ns() // 1_000_000)
            producer.flush()
    counts = {"begin_ms": begin_ms, "reached_ms": report.reached_ms, "events": report.impressions + report.actions}
    print(json.dumps(counts | {"seconds": report.seconds}), file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
