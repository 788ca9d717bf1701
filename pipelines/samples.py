"""Events to samples: `python -m pipelines.samples APP --runner prism [Beam's options]`.

It does what `streamlearn ingest` does, and passes all other options on to Beam.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from streamlearn.apps import load_app
from streamlearn.errors import StreamlearnError
from streamlearn.ingest import SamplesReport, end_at_once, run_samples
from streamlearn.process_exit import leave
from streamlearn.replay import stop_on_signals
from streamlearn.telemetry import set_up_logging

__all__ = ["run"]


def run(argv: Sequence[str]) -> SamplesReport:
    """Run ingest until its topics end or a signal stops it."""
    return _run(argv)[0]


def _run(argv: Sequence[str]) -> tuple[SamplesReport, float]:
    """Return the report, and the maximum share of dead letters."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.samples", allow_abbrev=False)
    parser.add_argument("app", metavar="APP", help="the folder of an application, on every worker")
    parser.add_argument("--runner", default="", help="prism or flink; by default ingest.runner")
    parser.add_argument("--accept-lost", action="store_true", help="continue although records were deleted")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="SECTION.NAME=VALUE")
    options, more = parser.parse_known_args(list(argv))
    folder = load_app(options.app, options.changes)
    set_up_logging(folder.settings.telemetry)
    with stop_on_signals(end_at_once) as stop:
        report = run_samples(
            folder,
            stop,
            changes=tuple(options.changes),
            runner=options.runner,
            accept_lost=options.accept_lost,
            more=tuple(more),
        )
    return report, 1.0 if report.stopped else folder.settings.ingest.dead_share_max


if __name__ == "__main__":
    try:
        report, share_max = _run(sys.argv[1:])
        print(report)
        if report.written is not None:
            report.written.check("APP", share_max)
    except StreamlearnError as error:
        print(f"error: {error}", file=sys.stderr)
        leave(error.exit_code)
    leave(0)
