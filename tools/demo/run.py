"""Run of the demo: starts the loop, plays the scenario, prints the facts and promises, and writes the report.

A week of real behaviour is replayed. One of two serving nodes scores each request before the user's reaction is
replayed. Ingest joins both into samples, a trainer and a worker learn them on two shards, and versions are published,
judged and served. Meanwhile a shard and the worker are killed, data is poisoned, a version that the judge rejected is
served by force and rolled back, and training goes back and skips the poisoned data. At last the application is changed:
one with a further feature begins with what was learned, takes over the callers, and gives them back.
"""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import typer

from streamlearn.apps import load_app
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.cli.report.page import page_of
from streamlearn.errors import StreamlearnError
from streamlearn.load.served_columns import completed
from streamlearn.online import check_served
from streamlearn.replay import load_history, open_replay_topics
from streamlearn.serving.infer import InferAnswer
from streamlearn.settings.telemetry import TelemetrySettings
from streamlearn.telemetry import set_up_logging
from tools.demo.board import Board
from tools.demo.burst import CANDIDATES, WORTH_MORE, Burst, ask_too_much
from tools.demo.change import Takeover, take_over
from tools.demo.facts import Facts, Outcome, Promise, facts_of, promises_of
from tools.demo.feed import Feed
from tools.demo.figure import draw_demo
from tools.demo.loop import Loop
from tools.demo.new_item import items_of
from tools.demo.place import one_machine_settings
from tools.demo.poison import Poison, span_of
from tools.demo.scenario import Scenario
from tools.demo.sent_labels import count_sent
from tools.demo.view import open_view
from tools.demo.witness import Witness

__all__ = ["run_demo"]

_SHARDS, _NODES = 2, 2
# A second slice costs little: the week has some hundred steps. So all versions come from two processes.
_WORKERS = ("workers.slices=2", "up.workers=1")
# Requests that are sent again while the application is changed.
_ASKED = 20
# Items that the changed application finds.
_ITEMS = 500
# Some actions of the example come late, so that labels are corrected.
_EXAMPLE, _EXAMPLE_OPTIONS = Path("examples/kuairand"), {"delayed": "0.05"}


def run_demo(app: Path, seconds: float, out: Path, set_: Sequence[str], *, json: bool) -> None:
    """Run the demo.

    Args:
        app: Folder of an application that has a history.py.
        seconds: How long the replay of the history takes.
        out: Folder of the report.
        set_: Settings, as `--set` takes them.
        json: Whether to print JSON instead of tables.

    Raises:
        StreamlearnError: A promise was broken, or a part of the loop failed.
    """
    set_up_logging(TelemetrySettings(log_level="error"))
    begin_s = time.monotonic()
    history = load_history(app, _EXAMPLE_OPTIONS if app == _EXAMPLE else {})
    span = span_of(history)
    speed = (span[1] - span[0]) / 1_000 / seconds
    with ExitStack() as ends:
        place = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="streamlearn-demo-")))
        changes = (*one_machine_settings(place, speed), *_WORKERS, *set_)
        folder = load_app(app, changes)
        board = Board(folder.app)
        view = ends.enter_context(open_view(f"{folder.app.name}, replayed {speed:,.0f} times as fast as recorded"))
        with open_replay_topics(folder):  # creates them
            pass
        options = " ".join(f"--set {change}" for change in _WORKERS)
        view.tell(f"streamlearn up {app} --nodes {_NODES} --shards {_SHARDS} {options}")
        loop = ends.enter_context(closing(Loop(folder, changes, place, _NODES, _SHARDS)))
        loop.wait_up()
        view.tell("all processes are ready; the replay begins, and each request is scored by a node first")
        scenario = Scenario(loop, board, span, view.tell)
        poisoned = Poison(Witness(history, board.did), folder.app, *scenario.poisoned)
        asked: deque[tuple[bytes, InferAnswer]] = deque(maxlen=_ASKED)
        feed = ends.enter_context(
            closing(Feed(folder, poisoned, loop.doors, board, speed, on_answer=lambda *both: asked.append(both)))
        )
        window_ms = round(max(group.window_s for group in folder.app.groups) * 1_000)
        view.show(loop, feed, board, window_ms, span)
        loop.on_wait = view.refresh
        observations = scenario.run(feed)
        view.tell("a node is asked for three times what it can do")
        burst = ask_too_much(loop, history)
        view.tell(
            f"its answers keep {burst.kept:.0%} of their value: it scores {burst.scored:.0f} of the {CANDIDATES} "
            "candidates of a request, on average"
        )
        view.tell(
            f"then half of the requests say that they are worth {WORTH_MORE:g} times as much as the others: it scores "
            f"{burst.scored_more:.0f} of their candidates, and {burst.scored_less:.0f} of the others'"
        )
        view.tell("a copy of the application with one more feature and retrieval is migrated, and started beside it")
        messages = [completed(folder.app, message, answer) for message, answer in asked]
        checked = check_served(folder, 0) if folder.app.features.entities else None
        items = [] if folder.app.retrieval or not folder.app.features.user_slot else items_of(folder, _ITEMS)
        takeover = take_over(loop, folder, place / "changed", messages, items)
        view.tell("it has answered all callers, and the first one answers them again: streamlearn switch")
        numbers = [label.number for label in folder.app.labels if label.number is not None]
        unlabelled = sum(number.missing == "unlabelled" for number in numbers)
        outcome = replace(
            _outcome(loop, feed, board, scenario, takeover, burst),
            unlabelled=unlabelled,
            unavailable=len(feed.unavailable),
            checked=checked,
        )
    rows, label = board.rows(), folder.app.labels[0].name
    promises = promises_of(observations, rows, outcome)
    facts = facts_of(observations, rows, outcome, label) | {"seconds in total": round(time.monotonic() - begin_s, 1)}
    page = _write_report(out, folder.app.name, scenario, board, promises, facts)
    if json:
        print_json(facts | {"report": str(page), "promises": [vars(promise) for promise in promises]})
    else:
        print_table([{f"{folder.app.name}: the loop": name, "": value} for name, value in facts.items()], whole=True)
        print_table([_table_row(promise) for promise in promises], whole=True)
        typer.echo(f"the report is in {page}")
    _check(promises)


def _outcome(loop: Loop, feed: Feed, board: Board, scenario: Scenario, takeover: Takeover, burst: Burst) -> Outcome:
    report, versions, rows = feed.report, loop.versions(), board.rows()
    assert report is not None
    begin_ms, end_ms = scenario.poisoned
    metrics = versions[-1].metrics
    (reverted,) = (version for version in versions if version.version == scenario.observations.reverted)
    learned_before = {position.partition: position.offset for position in loop.manifest(reverted).positions}
    return Outcome(
        impressions=report.impressions,
        actions=report.actions,
        events_per_s=report.events_per_s,
        requests=feed.requests,
        repeated=feed.repeated,
        unanswered=feed.unanswered,
        refusal=feed.refusal,
        dead_letters=loop.dead_letters,
        learned={name: round(metrics[name]) for name in ("samples", "labels_learned", "labels_corrected")},
        sent=count_sent(loop.folder, loop.manifest(versions[-1]).skips, learned_before),
        labels=rows.done.shape[1],
        skipped_rows=int(((rows.event_ms >= begin_ms) & (rows.event_ms < end_ms)).sum()),
        versions=len(versions),
        rejected=sum(version.outcome == "rejected" for version in versions),
        served=tuple(loop.served()),
        takeover=takeover,
        burst=burst,
    )


def _write_report(
    out: Path, name: str, scenario: Scenario, board: Board, promises: Sequence[Promise], facts: Facts
) -> Path:
    observations = scenario.observations
    png = draw_demo(board.rows(), observations.marks, observations.frozen)
    page = page_of(
        f"{name}: the loop",
        ["Each request was scored by the version served at that time, before the user's reaction was replayed."],
        {"Scores of the served version, and of a version that was kept": png},
        {
            "Promises": [_table_row(promise) for promise in promises],
            "Figures": [{"figure": name, "value": value} for name, value in facts.items()],
        },
    )
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.png").write_bytes(png)
    (out / "report.html").write_text(page)
    return out / "report.html"


def _table_row(promise: Promise) -> dict[str, str]:
    return {"promise": promise.text, "": "kept" if promise.is_kept else "BROKEN", "seen": promise.seen}


def _check(promises: Sequence[Promise]) -> None:
    broken = [promise for promise in promises if not promise.is_kept]
    if broken:
        message = "broken promises: " + "; ".join(f"{promise.text}: {promise.seen}" for promise in broken)
        raise StreamlearnError(message, help="on a busy machine, raise --seconds; see above")
    typer.echo(f"ok: all {len(promises)} promises were kept", err=True)
