"""`streamlearn demo`: the whole loop on this machine, and what befalls it, told while it happens.

A week of real behaviour is replayed. Each request is put to one of two serving nodes before anybody has done anything
about it, then it is produced with what they said; ingest joins it with what people did; a trainer learns it on two
shards; versions are published, judged and served. On the way a shard is killed, data are poisoned, a version that the
judge refused is forced through, rolled back, and training is put back behind the poison.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamlearn.cli.options import JsonOption, SetOption
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.errors import StreamlearnError

if TYPE_CHECKING:
    from streamlearn.demo import Board, Feed, Loop
    from streamlearn.demo.facts import Ended, Promise
    from streamlearn.demo.story import Story

__all__ = ["demo"]

_SHARDS, _NODES = 2, 2
_SECONDS = 120.0
_KUAIRAND = Path("examples/kuairand")
# Some of its actions come late, so that labels are corrected.
_KUAIRAND_OPTIONS = {"delayed": "0.05"}


def demo(
    app: Annotated[
        Path, typer.Argument(metavar="[APP]", help="Folder of an application that has a history.py.", show_default=True)
    ] = _KUAIRAND,
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar="N", min=30, max=86_400, help="How long the replay of the history takes."),
    ] = _SECONDS,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Folder of the report; APP/.streamlearn/demo by default."),
    ] = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Run the whole loop on a history: score, join, learn, publish and serve; then poison it and roll back."""
    from streamlearn.apps import load_app
    from streamlearn.demo import Board, Feed, Loop, Witness
    from streamlearn.demo.facts import facts_of, promises_of
    from streamlearn.demo.place import on_one_machine
    from streamlearn.demo.poison import Poison, span_of
    from streamlearn.demo.story import Story
    from streamlearn.demo.view import watched
    from streamlearn.replay import load_history, open_replay_topics
    from streamlearn.settings.telemetry import TelemetrySettings
    from streamlearn.telemetry import set_up_logging

    set_up_logging(TelemetrySettings(log_level="error"))
    begin_s = time.monotonic()
    history = load_history(app, _KUAIRAND_OPTIONS if app == _KUAIRAND else {})
    span = span_of(history)
    speed = (span[1] - span[0]) / 1_000 / seconds
    with ExitStack() as ends:
        place = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="streamlearn-demo-")))
        changes = (*on_one_machine(place, speed), *(set_ or ()))
        folder = load_app(app, changes)
        board = Board(folder.app)
        view = ends.enter_context(watched(f"{folder.app.name}, replayed {speed:,.0f} times as fast as recorded"))
        with open_replay_topics(folder):  # makes them
            pass
        view.tell(f"streamlearn up {app} --nodes {_NODES} --shards {_SHARDS}")
        loop = ends.enter_context(closing(Loop(folder, changes, place, _NODES, _SHARDS)))
        loop.wait_up()
        view.tell("all processes are ready; the replay begins, and each request is scored by a node first")
        story = Story(loop, board, span, view.tell)
        poisoned = Poison(Witness(history, board.did), folder.app, *story.poisoned)
        feed = ends.enter_context(closing(Feed(folder, poisoned, loop.nodes, board, speed)))
        window_ms = round(max(group.window_s for group in folder.app.groups) * 1_000)
        view.of(loop, feed, board, window_ms, span)
        loop.waiting = view.look
        found, ended = story.run(feed), _ended(loop, feed, board, story)
    rows, label = board.rows(), folder.app.labels[0].name
    promises = promises_of(found, rows, ended)
    facts = facts_of(found, rows, ended, label) | {"seconds in total": round(time.monotonic() - begin_s, 1)}
    page = _report(out or app / ".streamlearn" / "demo", folder.app.name, story, board, promises, facts)
    if json:
        print_json(facts | {"report": str(page), "promises": [vars(one) for one in promises]})
    else:
        print_table([{f"{folder.app.name}: the loop": name, "": value} for name, value in facts.items()], whole=True)
        print_table([_row(one) for one in promises], whole=True)
        typer.echo(f"the report is in {page}")
    _check(promises)


def _ended(loop: Loop, feed: Feed, board: Board, story: Story) -> Ended:
    """The results, at the end."""
    from streamlearn.demo.facts import Ended

    report, known, rows = feed.report, loop.known(), board.rows()
    assert report is not None
    begin_ms, end_ms = story.poisoned
    metrics = known[-1].metrics
    return Ended(
        impressions=report.impressions,
        actions=report.actions,
        events_per_s=report.events_per_s,
        asked=feed.asked,
        unanswered=feed.unanswered,
        letters=loop.letters,
        learned={name: round(metrics[name]) for name in ("samples", "labels_learned", "labels_corrected")},
        labels=rows.done.shape[1],
        skipped_rows=int(((rows.event_ms >= begin_ms) & (rows.event_ms < end_ms)).sum()),
        versions=len(known),
        rejected=sum(one.outcome == "rejected" for one in known),
        served=tuple(loop.served()),
    )


def _report(
    out: Path, name: str, story: Story, board: Board, promises: Sequence[Promise], facts: dict[str, object]
) -> Path:
    """Write the page and its figure."""
    from streamlearn.cli.demo.figure import draw_demo
    from streamlearn.cli.report.page import page_of

    png = draw_demo(board.rows(), story.found.marks, story.found.frozen)
    said = [
        "Each request was scored by the version that was served at that time, before the user's reaction was replayed."
    ]
    page = page_of(
        f"{name}: the loop",
        said,
        {"Scores of the served version, and of a version that was kept": png},
        {
            "Promises": [_row(one) for one in promises],
            "Figures": [{"figure": one, "value": value} for one, value in facts.items()],
        },
    )
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.png").write_bytes(png)
    (out / "report.html").write_text(page)
    return out / "report.html"


def _row(one: Promise) -> dict[str, str]:
    return {"promise": one.text, "": "kept" if one.is_kept else "BROKEN", "seen": one.seen}


def _check(promises: Sequence[Promise]) -> None:
    broken = [one for one in promises if not one.is_kept]
    if broken:
        message = "broken promises: " + "; ".join(f"{one.text}: {one.seen}" for one in broken)
        raise StreamlearnError(message, help="on a busy machine, raise --seconds; see above")
    typer.echo(f"ok: all {len(promises)} promises were kept", err=True)
