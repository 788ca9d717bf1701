"""`streamlearn backfill`: rebuilds samples from history, selected by event time or by offsets."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.options import AcceptLostOption, AppArgument, BeamOption, JsonOption, SetOption
from streamlearn.cli.output.table import print_facts, print_json
from streamlearn.cli.run.ingest import load_for_beam, report_letters, written_rows
from streamlearn.lazy import collector_off
from streamlearn.times import time_text

if TYPE_CHECKING:
    from streamlearn.ingest import BackfillReport

__all__ = ["backfill"]


def backfill(
    app: AppArgument,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TIME", help="Begin with impressions of this event time, such as 2022-04-25; UTC."
        ),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Stop before this event time.")] = None,
    from_offsets: Annotated[
        str,
        typer.Option(
            metavar="P:N,...", help="Begin with impressions of records at these offsets, such as 0:1200,1:1180."
        ),
    ] = "",
    to_offsets: Annotated[
        str,
        typer.Option(metavar="P:N,...", help="Stop before these offsets. Partitions in neither option are left out."),
    ] = "",
    runner: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="prism or direct (this machine) or flink (a cluster); default: ingest.runner."
        ),
    ] = "",
    accept_lost: AcceptLostOption = False,
    interactions: Annotated[
        bool, typer.Option("--interactions", help="Write interactions too, into a topic that does not have them.")
    ] = False,
    beam: BeamOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Rebuild samples from APP's history. Safe to run while ingest is running."""
    changes = tuple(set_ or ())
    folder = load_for_beam(app, changes, "backfill")
    with collector_off():
        from streamlearn.ingest import HistoryRange, run_backfill  # after the set-up of logs: Beam logs while it loads

    selection = HistoryRange.of(begin, end, from_offsets=from_offsets, to_offsets=to_offsets)
    report = run_backfill(
        folder,
        selection,
        changes=changes,
        runner=runner,
        accept_lost=accept_lost,
        interactions=interactions,
        more=tuple(beam or ()),
    )
    print_json(asdict(report)) if json else print_facts("backfilled", _summary(report))
    report_letters(report.written, app, folder.settings.ingest.dead_share_max)


def _summary(report: BackfillReport) -> dict[str, Any]:
    return {
        "from": time_text(report.begin_ms),
        "to": time_text(report.end_ms),
        "stretches": report.stretches,
        "seconds": round(report.seconds, 1),
        **written_rows(report.written),
        **{name.replace("_", " "): count for name, count in report.counts.items() if name != "letters"},
    }
