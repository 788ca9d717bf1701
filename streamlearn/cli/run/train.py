"""`streamlearn train`: trains an application's model from its samples until a signal arrives."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.options import (
    AcceptLostOption,
    AppArgument,
    JsonOption,
    SetOption,
    TlsCertOption,
    TlsKeyOption,
    tls_files,
)
from streamlearn.cli.output.progress import LINE_S
from streamlearn.cli.output.table import print_facts, print_json
from streamlearn.cli.output.units import counted
from streamlearn.errors import UsageError
from streamlearn.pulse import PULSE
from streamlearn.times import parse_time_ms

if TYPE_CHECKING:
    from streamlearn.topics import Topic
    from streamlearn.trainer import Trainer, TrainReport, Until

__all__ = ["train"]

_TERMINAL_S = 0.5
_BAR_CHARS = 20


def train(
    app: AppArgument,
    until_idle: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.0, help="End after this long without new samples.")
    ] = None,
    until_offset: Annotated[
        str,
        typer.Option(
            metavar="OFFSETS", help="End here: `end` (the present end of the samples) or PARTITION:OFFSET,..."
        ),
    ] = "",
    passes: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Learn the history N times before the first version, if there is none."),
    ] = 1,
    until: Annotated[
        str, typer.Option(metavar="TIME", help="With --passes: the history ends at this event time; UTC.")
    ] = "",
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="With --passes: mix requests of every 16 steps, again in each pass.")
    ] = False,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token that the shards expect, and workers send.")
    ] = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    accept_lost: AcceptLostOption = False,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Train APP's model from its samples and publish versions. SIGTERM ends it with a last version."""
    from streamlearn.access.renewal import open_token
    from streamlearn.apps import load_app
    from streamlearn.metrics_server import serve_metrics
    from streamlearn.models.tensorflow_load import load_tensorflow
    from streamlearn.replay import stop_on_signals
    from streamlearn.telemetry import set_up_logging

    folder = load_app(app, tuple(set_ or ()))
    set_up_logging(folder.settings.telemetry)
    load_tensorflow()
    from streamlearn.trainer import Until, ends_of
    from streamlearn.trainer import train as train_model

    token = None if token_file is None else open_token(token_file)
    if (until or shuffle) and passes == 1:
        message = f"{'--until' if until else '--shuffle'} was given without --passes"
        raise UsageError(message, help="give --passes N with it; --until-offset ends training")
    history_ms = parse_time_ms(until, datetime.now(UTC)) if until else None

    def end_of(topic: Topic) -> Until:
        return Until(ends_of(topic, until_offset) if until_offset else None, until_idle)

    # Objects loaded by now live until the end: full collections that visit them would delay every stage.
    gc.freeze()
    with serve_metrics(folder.settings.telemetry), stop_on_signals() as stop, _show_training() as show:
        try:
            report = train_model(
                folder, stop, until=end_of, token=token, tls=tls_files(tls_cert, tls_key), accept_lost=accept_lost,
                passes=passes, history_ms=history_ms, is_shuffled=shuffle, show=show,
            )  # fmt: skip
        finally:
            PULSE.stopping()
    facts = _facts(report)
    if json:
        print_json(facts)
    else:
        print_facts("trained", {name: "-" if value is None else value for name, value in facts.items()})
    for line in _warnings(report):
        typer.echo(line, err=True)


def _warnings(report: TrainReport) -> list[str]:
    tally, counts, lines = report.tally, report.tally.counts, list[str]()
    if not tally.rows:
        read = counts.get("read", 0)
        why = (
            f"{counted(read, 'row')} read, but none left to learn"
            if read
            else f"no samples came after version {report.version}"
        )
        lines.append(f"nothing new to learn: {why}")
    for partition, (begin, end) in sorted(report.lost.items()):
        deleted = f"offsets {begin} to {end - 1}" if end > begin else f"all messages before offset {begin}"
        lines.append(f"warning: partition {partition} of the samples: {deleted} were deleted before they were learned")
    if old := counts.get("old", 0):
        lines.append(
            f"warning: {counted(old, 'row')} came too late and were not learned, because the marks of that time were "
            'dropped\nhelp: raise trainer.restart_slack_s; see "Training" in the documentation'
        )
    if refused := tally.refused_rows + counts.get("bad", 0):
        lines.append(
            f"warning: {counted(refused, 'row')} or messages were refused\n"
            'help: they are kept in APP/.streamlearn/kept; see "Training" in the documentation'
        )
    return lines


def _facts(report: TrainReport) -> dict[str, Any]:
    tally = report.tally
    return {
        "run": report.run,
        "version": report.version,
        "seconds": round(report.seconds, 2),
        "steps": tally.steps,
        "rows": tally.rows,
        "rows_per_s": round(tally.rows / max(report.seconds, 1e-9)),
        "loss": round(tally.loss / tally.rows, 6) if tally.rows else None,
        **{f"rows_{name}": count for name, count in tally.counts.items()},
        "rows_refused": tally.refused_rows,
        "steps_refused": tally.refused_steps,
        "recoveries": report.recoveries,
        "rewinds": report.rewinds,
        **{f"lost_from_partition_{number}": f"{begin}..{end}" for number, (begin, end) in sorted(report.lost.items())},
        **{name: round(value, 6) for name, value in report.summary.items()},
        **{f"seconds_{stage}": round(seconds, 2) for stage, seconds in tally.seconds.items()},
    }


@contextmanager
def _show_training() -> Iterator[Callable[[Trainer], None]]:
    """Yield a function that shows the state of a trainer, at most once per interval."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), auto_refresh=False) as live:
            yield _limited(_TERMINAL_S, lambda lines: live.update("\n".join(lines), refresh=True), bars=True)
    else:
        yield _limited(LINE_S, lambda lines: print(lines[0], file=sys.stderr, flush=True), bars=False)


def _stage_shares(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Return the share of an interval in which each stage was busy.

    Examples:
        >>> _stage_shares({"pull": 1.0}, {"pull": 2.0, "push": 0.5}, 2.0)
        {'pull': 0.5, 'push': 0.25}
    """
    return {name: min(1.0, max(0.0, (busy - before.get(name, 0.0)) / seconds)) for name, busy in after.items()}


def _limited(every_s: float, show: Callable[[list[str]], None], *, bars: bool) -> Callable[[Any], None]:
    begun_s = shown_s = time.monotonic()
    rows, busy = 0, dict[str, float]()

    def show_if_due(trainer: Trainer) -> None:
        nonlocal shown_s, rows, busy
        now_s = time.monotonic()
        if now_s - shown_s < every_s:
            return
        tally, seconds = trainer.tally, now_s - shown_s
        lines = [_line(trainer, (tally.rows - rows) / seconds, now_s - begun_s)]
        if bars:
            shares = _stage_shares(busy, tally.seconds, seconds)
            lines += [
                f"  {name:8}{'█' * round(share * _BAR_CHARS):{_BAR_CHARS}} {share:4.0%}"
                for name, share in shares.items()
            ]
        shown_s, rows, busy = now_s, tally.rows, dict(tally.seconds)
        show(lines)

    return show_if_due


def _line(trainer: Trainer, rows_per_s: float, seconds: float) -> str:
    committed = trainer.publisher.committed
    summary = trainer.summary
    shown = (("auc", "AUC"), ("mae", "MAE"))
    score = next((f"  {text} {summary[name]:.4f}" for name, text in shown if name in summary), "")
    version = "none" if committed is None else str(committed.version)
    return (
        f"{seconds:6.0f} s  {trainer.tally.rows:,} samples  {rows_per_s:,.0f}/s  {trainer.lag:,} messages behind"
        f"{score}  version {version}"
    )
