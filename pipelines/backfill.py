"""Samples of history: `python -m pipelines.backfill APP --from 2022-04-25 --to 2022-05-01 [Beam's options]`.

It does what `streamlearn backfill` does, and passes all other options on to Beam.
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
    """Run the backfill to its end."""
    return _run(argv)[0]


def _run(argv: Sequence[str]) -> tuple[BackfillReport, float]:
    """Return the report, and the maximum share of dead letters."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.backfill", allow_abbrev=False)
    parser.add_argument("app", metavar="APP", help="the folder of an application, on every worker")
    parser.add_argument("--from", dest="begin", metavar="TIME", help="first event time, ISO 8601; UTC by default")
    parser.add_argument("--to", dest="end", metavar="TIME", help="event time after the last, exclusive")
    parser.add_argument(
        "--from-offsets", default="", metavar="P:N,...", help="first offsets by partition of the impressions topic"
    )
    parser.add_argument(
        "--to-offsets", default="", metavar="P:N,...", help="offsets after the last by partition, exclusive"
    )
    parser.add_argument("--runner", default="", help="prism, direct or flink; by default ingest.runner")
    parser.add_argument("--accept-lost", action="store_true", help="continue although records were deleted")
    parser.add_argument("--interactions", action="store_true", help="write interactions too")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="SECTION.NAME=VALUE")
    options, more = parser.parse_known_args(list(argv))
    within = HistoryRange.of(
        options.begin, options.end, from_offsets=options.from_offsets, to_offsets=options.to_offsets
    )
    folder = load_app(options.app, options.changes)
    set_up_logging(folder.settings.telemetry)
    report = run_backfill(
        folder,
        within,
        changes=tuple(options.changes),
        runner=options.runner,
        accept_lost=options.accept_lost,
        interactions=options.interactions,
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
