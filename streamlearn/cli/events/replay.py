"""`streamlearn replay`: writes an application's history into its topics, at a multiple of real time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.model.model_options import open_model
from streamlearn.cli.options import (
    AppArgument,
    HistoryOption,
    JsonOption,
    Place,
    SetOption,
    TokenFileOption,
    named_values,
)
from streamlearn.cli.output.progress import progress_lines
from streamlearn.cli.output.table import print_facts, print_json, print_table
from streamlearn.cli.output.units import counted
from streamlearn.errors import EXIT_PARTLY, UsageError
from streamlearn.times import parse_duration_ms, time_text

if TYPE_CHECKING:
    from streamlearn.load.node_scores import NodeScores
    from streamlearn.load.served_labels import ServedLabels
    from streamlearn.replay.replayer import ReplayProgress, ReplayReport

__all__ = ["line_progress", "replay"]


def replay(
    app: AppArgument,
    speed: Annotated[float, typer.Option(help="Replay speed: 1 is real time, 0 is as fast as possible.")] = 0.0,
    option: HistoryOption = None,
    limit_events: Annotated[int | None, typer.Option(help="Stop after this many events.")] = None,
    ask: Annotated[
        str, typer.Option(metavar="ADDRESSES", help="Have these nodes (HOST:PORT,...) score each request first.")
    ] = "",
    pin: Annotated[str, typer.Option(metavar="VERSION", help="Ask for this version instead of the served one.")] = "",
    every: Annotated[
        str,
        typer.Option(metavar="TIME", help="After each TIME of events, such as 1m, wait until nodes serve what is due."),
    ] = "",
    token_file: TokenFileOption = None,
    append: Annotated[bool, typer.Option("--append", help="Also write if the topics already hold records.")] = False,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Replay the history of APP into its topics; ends with status 3 if stopped before its end."""
    from streamlearn.access.token_file import read_token
    from streamlearn.apps import load_app
    from streamlearn.events import Producer
    from streamlearn.load.learned_wait import LearnedWait
    from streamlearn.load.node_scores import NodeScores
    from streamlearn.load.served_labels import ServedLabels
    from streamlearn.replay import Replayer, computed_history, load_history, open_replay_topics, stop_on_signals

    folder = load_app(app, set_ or ())
    history = load_history(app, named_values(option))
    if not ask:  # nodes compute what requests lack, and say what it was
        history = computed_history(history, folder.app)
    if (pin or token_file) and not ask:
        message = f"{'--pin' if pin else '--token-file'} was given without --ask"
        raise UsageError(message, help="give --ask with the addresses of nodes")
    events = history.events_count
    if limit_events is not None:
        events = limit_events if events is None else min(events, limit_events)
    served, hooks = None, dict[str, Any]()
    with ExitStack() as ends, stop_on_signals() as stop:
        if ask:
            token = None if token_file is None else read_token(token_file).decode("latin-1")
            nodes = NodeScores(folder.app, [address.strip() for address in ask.split(",")], token)
            ends.callback(nodes.close)
            served = ServedLabels(folder.app, nodes, pin)
            hooks = {"scored": served.score, "acted": served.did}
        wait = LearnedWait(folder, open_model(None, Place(app=app, set_=set_))) if every else None
        if wait is not None:
            hooks |= {"every_ms": parse_duration_ms(every), "waited": wait.until}
        topics = ends.enter_context(open_replay_topics(folder, append=append))
        if wait is not None:
            ends.enter_context(wait)
        producer = ends.enter_context(Producer(folder, impressions=topics[0], actions=topics[1]))
        on_progress = ends.enter_context(_show_progress(events))
        replayer = Replayer(history, producer, folder.settings.replay, **hooks)
        report = replayer.run(speed=speed, events_max=limit_events, on_progress=on_progress, stop=stop)
    scores = {} if served is None else _served(served, nodes)
    if json:
        print_json(asdict(report) | scores)
    else:
        print_facts("replayed", _summary(report))
        if scores:
            labels = scores.pop("served")
            print_facts("asked", scores)
            print_table(labels)
    if not report.ended:
        # The topics now have no end mark, and the position in the history is not stored.
        reached = f"stopped at {time_text(report.reached_ms)}, {counted(report.impressions + report.actions, 'event')}"
        hint = "start over with other topics (--set topics.root=...), or continue in these with --append"
        typer.echo(f"{reached}\nhelp: {hint}", err=True)
        raise typer.Exit(EXIT_PARTLY)


def _served(served: ServedLabels, nodes: NodeScores) -> dict[str, Any]:
    """Return how nodes answered, and how well their scores rank what users did within the labels' windows."""
    import numpy as np

    from streamlearn.publisher.logit_scores import auc_of

    labels: list[dict[str, Any]] = []
    for label, scores, is_done in served.rows():
        has_both = is_done.any() and not is_done.all()
        auc = round(auc_of(scores, is_done, np.ones(len(scores))), 4) if has_both else None
        labels.append({"label": label, "rows": len(scores), "positives": int(is_done.sum()), "auc": auc})
    counts = {"requests": nodes.requests, "repeated": nodes.repeated, "unanswered": nodes.unanswered}
    return {**counts, "refusal": nodes.refusal or None, "served": labels}


def _summary(report: ReplayReport) -> dict[str, Any]:
    return {
        "impressions": report.impressions,
        "actions": report.actions,
        "from": time_text(report.begin_ms),
        "reached": time_text(report.reached_ms),
        "seconds": round(report.seconds, 1),
        "events/s": round(report.events_per_s),
        "ended": report.ended,
    }


@contextmanager
def _show_progress(events: int | None) -> Iterator[Callable[[ReplayProgress], None]]:
    """Yield a function that shows progress; `events` is the expected number, if known."""
    if not sys.stderr.isatty():
        yield line_progress(events)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        TextColumn("{task.completed:,.0f} events"),
        TextColumn("{task.fields[reached]}"),
        TextColumn("{task.fields[rate]:,.0f} events/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replay", total=events, reached="", rate=0.0)

        def show(progress: ReplayProgress) -> None:
            reached = time_text(progress.event_time_ms)
            bar.update(task, completed=progress.events, reached=reached, rate=progress.events_per_s)

        yield show


def line_progress(events: int | None, now_s: Callable[[], float] = time.monotonic) -> Callable[[ReplayProgress], None]:
    """Return a function that prints a line from time to time; see `_show_progress` for `events`."""
    of_all = "" if events is None else f" of {events:,}"

    def line(progress: ReplayProgress) -> str:
        reached, rate = time_text(progress.event_time_ms), f"{progress.events_per_s:,.0f} events/s"
        return f"{reached}  {progress.events:,}{of_all} events  {rate}"

    return progress_lines(line, now_s)
