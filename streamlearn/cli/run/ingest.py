"""`streamlearn ingest`: joins an application's events into samples until its topics end or a signal arrives."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.options import AcceptLostOption, AppArgument, BeamOption, JsonOption, SetOption
from streamlearn.cli.output.table import print_facts, print_json
from streamlearn.lazy import collector_off
from streamlearn.times import time_text

if TYPE_CHECKING:
    from pathlib import Path

    from streamlearn.apps import AppFolder
    from streamlearn.ingest import SamplesReport
    from streamlearn.ingest.output.sink_counts import Written

__all__ = ["ingest", "load_for_beam", "report_letters", "written_rows"]


def ingest(
    app: AppArgument,
    runner: Annotated[
        str, typer.Option(metavar="NAME", help="prism (this machine) or flink (a cluster); default: ingest.runner.")
    ] = "",
    accept_lost: AcceptLostOption = False,
    beam: BeamOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Join APP's events into samples until its topics end. SIGTERM ends it after due samples are written."""
    from streamlearn.metrics_server import serve_metrics
    from streamlearn.replay import stop_on_signals

    changes = tuple(set_ or ())
    folder = load_for_beam(app, changes, "ingest")
    with collector_off():
        from streamlearn.ingest import end_at_once, run_samples  # after the set-up of logs: Beam logs while it loads

    with serve_metrics(folder.settings.telemetry), stop_on_signals(end_at_once) as stop:
        report = run_samples(
            folder, stop, changes=changes, runner=runner, accept_lost=accept_lost, more=tuple(beam or ())
        )
    print_json(asdict(report)) if json else print_facts("joined", _summary(report))
    if report.written is not None:
        report_letters(report.written, app, 1.0 if report.stopped else folder.settings.ingest.dead_share_max)


def report_letters(written: Written, app: Path, share_max: float) -> None:
    """Warn of dead letters on stderr; raises PartlyDone if their share of the events is above `share_max`."""
    written.check(str(app), share_max)
    if warning := written.warning(str(app)):
        typer.echo(f"warning: {warning}", err=True)


def written_rows(written: Written | None) -> dict[str, Any]:
    """Return counts of samples, and of dead letters by reason."""
    if written is None:
        return {"samples": "not reported by the runner"}
    letters = {f"dead letters {reason}".replace("_", " "): count for reason, count in written.letters.items()}
    return {"samples": written.samples, "dead letters": sum(written.letters.values()), **letters}


def load_for_beam(app: Path, changes: tuple[str, ...], verb: str) -> AppFolder:
    """Load an application and set up its logs; logs of Beam's workers are shown only at level debug."""
    from streamlearn.apps import load_app
    from streamlearn.telemetry import set_up_logging

    folder = load_app(app, changes)
    folder.require_own_samples(verb)
    # The command prints a worker's error once, at the end. Beam would log it in each layer.
    telemetry = folder.settings.telemetry
    set_up_logging(telemetry, libraries="info" if telemetry.log_level == "debug" else "critical")
    return folder


def _summary(report: SamplesReport) -> dict[str, Any]:
    counts = dict(report.counts)
    events = counts.get("impressions", 0) + counts.get("actions", 0)
    return {
        "run": report.run,
        "from": "the beginning" if report.start_ms is None else time_text(report.start_ms),
        "seconds": round(report.seconds, 1),
        "events/s": round(events / max(report.seconds, 1e-9)),
        "ended": "stopped" if report.stopped else "with its topics",
        **written_rows(report.written),
        **{name.replace("_", " "): counts[name] for name in sorted(counts) if counts[name]},
    }
