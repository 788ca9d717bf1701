"""`streamlearn backfill`: the samples of an application's history, of some event time or of some records."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.ingest import load_for_beam, say_letters, written_rows
from streamlearn.cli.options import AcceptLostOption, AppArgument, BeamOption, JsonOption, SetOption
from streamlearn.cli.table import print_json, print_table
from streamlearn.cli.units import time_text

if TYPE_CHECKING:
    from streamlearn.ingest import BackfillReport

__all__ = ["backfill"]


def backfill(
    app: AppArgument,
    begin: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Of impressions from this event time on, such as 2022-04-25; UTC."),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="And up to this event time, not included.")
    ] = None,
    from_offsets: Annotated[
        str,
        typer.Option(metavar="P:N,...", help="Of impressions of records from these offsets on, such as 0:1200,1:1180."),
    ] = "",
    to_offsets: Annotated[
        str, typer.Option(metavar="P:N,...", help="And up to these, not included; partitions not named are left out.")
    ] = "",
    runner: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="prism or direct (this machine) or flink (a cluster); ingest.runner when not given."
        ),
    ] = "",
    accept_lost: AcceptLostOption = False,
    beam: BeamOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Make the samples of APP's history once more, or for the first time; it ends no run of ingest."""
    changes = tuple(set_ or ())
    folder = load_for_beam(app, changes)
    from streamlearn.ingest import HistoryRange, run_backfill  # Beam speaks while it is loaded

    within = HistoryRange.of(begin, end, from_offsets=from_offsets, to_offsets=to_offsets)
    report = run_backfill(
        folder, within, changes=changes, runner=runner, accept_lost=accept_lost, more=tuple(beam or ())
    )
    print_json(asdict(report)) if json else print_table(
        [{"backfilled": name, "": value} for name, value in _summary(report).items()]
    )
    say_letters(report.written, app)


def _summary(report: BackfillReport) -> dict[str, Any]:
    return {
        "from": time_text(report.begin_ms),
        "to": time_text(report.end_ms),
        "stretches": report.stretches,
        "seconds": round(report.seconds, 1),
        **written_rows(report.written),
        **{name.replace("_", " "): count for name, count in report.counts.items() if name != "letters"},
    }
