"""Samples of history: `python -m pipelines.backfill APP --from 2022-04-25 --to 2022-05-01 [Beam's options]`.

It does what `streamlearn backfill` does, and hands on to Beam every option that is not its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from streamlearn.apps import load_app
from streamlearn.errors import StreamlearnError
from streamlearn.ingest import BackfillReport, HistoryRange, run_backfill
from streamlearn.process_exit import leave
from streamlearn.telemetry import set_up_logging

__all__ = ["run"]


def run(argv: Sequence[str]) -> BackfillReport:
    """Run it to its end."""
    return _run(argv)[0]


def _run(argv: Sequence[str]) -> tuple[BackfillReport, float]:
    """The report, and the share of events that may become dead letters."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.backfill", allow_abbrev=False)
    parser.add_argument("app", metavar="APP", help="the folder of an application, on every worker")
    parser.add_argument("--from", dest="begin", metavar="TIME", help="event time, ISO 8601; UTC unless it says so")
    parser.add_argument("--to", dest="end", metavar="TIME", help="event time, not included; behind the last")
    parser.add_argument("--from-offsets", default="", metavar="P:N,...", help="by partition of the impressions topic")
    parser.add_argument("--to-offsets", default="", metavar="P:N,...", help="by partition, not included")
    parser.add_argument("--runner", default="", help="prism, direct or flink; ingest.runner when not given")
    parser.add_argument("--accept-lost", action="store_true", help="begin with what is there")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="SECTION.NAME=VALUE")
    own, more = parser.parse_known_args(list(argv))
    within = HistoryRange.of(own.begin, own.end, from_offsets=own.from_offsets, to_offsets=own.to_offsets)
    folder = load_app(own.app, own.changes)
    set_up_logging(folder.settings.telemetry)
    report = run_backfill(
        folder,
        within,
        changes=tuple(own.changes),
        runner=own.runner,
        accept_lost=own.accept_lost,
        more=tuple(more),
    )
    return report, folder.settings.ingest.dead_share_max


if __name__ == "__main__":
    try:
        report, share_max = _run(sys.argv[1:])
        print(report)
        report.written.check("APP", share_max)
    except StreamlearnError as error:
        print(f"error: {error}", file=sys.stderr)
        leave(error.exit_code)
    leave(0)
