"""`streamlearn bench-serve`: sends requests to a serving node at times independent of its answers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from urllib.parse import urlsplit

import typer

from streamlearn.cli.bench.output import result_facts, result_rows, search_facts
from streamlearn.cli.bench.requests import KINDS, draw_requests
from streamlearn.cli.options import (
    AuthorityOption,
    HistoryOption,
    JsonOption,
    SetOption,
    TokenFileOption,
    named_values,
    one_of,
    option_numbers,
)
from streamlearn.cli.output.progress import progress_lines
from streamlearn.cli.output.table import print_facts, print_json
from streamlearn.errors import EXIT_FAILED, PartlyDone, UsageError

if TYPE_CHECKING:
    from threading import Event

    from streamlearn.load.load_run import Load, LoadPlan, LoadProgress, LoadResult

__all__ = ["bench_serve"]

ARRIVALS = ("poisson", "bursts", "constant")
_RATE = 100.0
_GRPC_CONNECTIONS, _HTTP_CONNECTIONS = 2, 256

_Address: TypeAlias = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="The node: HOST:PORT for gRPC, http://HOST:PORT for JSON.")
]
_App: TypeAlias = Annotated[Path, typer.Option(metavar="APP", help="Folder of the application that the node serves.")]
_Model: TypeAlias = Annotated[
    str, typer.Option(metavar="NAME", help="Model to request.", show_default="the application's name")
]
_Version: TypeAlias = Annotated[
    str, typer.Option(metavar="VERSION", help="Version to request.", show_default="the active one")
]
_Rate: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="R", help="Requests per second; with --search-goodput, the rate to begin with.", show_default="100"
    ),
]
_Concurrency: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="C",
        min=1,
        help="Instead of a rate: number of callers. Each sends a request, waits for the answer, then sends the next.",
    ),
]
_Seconds: TypeAlias = Annotated[int, typer.Option(metavar="S", min=1, max=3600, help="How long to measure.")]
_Warmup: TypeAlias = Annotated[
    float, typer.Option(metavar="S", min=0, help="How long to send requests before the measurement.")
]
_Arrivals: TypeAlias = Annotated[
    str, typer.Option(help=f"Distribution of the arrival times: {', '.join(ARRIVALS)}.", callback=one_of(ARRIVALS))
]
_Bursts: TypeAlias = Annotated[
    str, typer.Option(metavar="FACTOR,LASTS_S,EVERY_S", help="Burst factor, duration and interval in seconds.")
]
_Deadline: TypeAlias = Annotated[
    int | None, typer.Option(metavar="D", min=1, help="Deadline per request, sent to the node.")
]
_Search: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="P99_MS",
        help="Find the highest rate at which p99 latency stays below this and no request fails.",
    ),
]
_Kind: TypeAlias = Annotated[
    str,
    typer.Option(
        help="Source of requests: synthetic (values by Zipf's law), history (impressions of the application's "
        "history.py) or topic (impressions of its topic).",
        callback=one_of(KINDS),
    ),
]
_Count: TypeAlias = Annotated[int, typer.Option(metavar="N", min=1, help="Number of different requests.")]
_Mean: TypeAlias = Annotated[
    float | None,
    typer.Option(metavar="N", min=1, help="Candidates per request.", show_default="36, or as recorded"),
]
_Most: TypeAlias = Annotated[int, typer.Option(metavar="N", min=1, help="Most candidates per request.")]
_Values: TypeAlias = Annotated[
    int, typer.Option(metavar="N", min=1, help="Number of different values of a slot in synthetic requests.")
]
_Connections: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Number of connections; with HTTP the most.", show_default="2, or 256 with HTTP"
    ),
]
_Threads: TypeAlias = Annotated[int, typer.Option(metavar="N", min=1, help="Number of threads that send.")]
_Outstanding: TypeAlias = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        help="Most requests in flight. A request that is due beyond that fails.",
    ),
]
_Seed: TypeAlias = Annotated[
    int, typer.Option(min=0, help="Seed. The same seed sends the same requests at the same times.")
]


def bench_serve(
    address: _Address,
    app: _App,
    model: _Model = "",
    version: _Version = "",
    rate: _Rate = None,
    concurrency: _Concurrency = None,
    seconds: _Seconds = 10,
    warmup_s: _Warmup = 2.0,
    arrivals: _Arrivals = "poisson",
    bursts: _Bursts = "4,0.5,5",
    deadline_ms: _Deadline = None,
    search_goodput: _Search = None,
    requests: _Kind = "synthetic",
    requests_count: _Count = 2000,
    candidates_mean: _Mean = None,
    candidates_max: _Most = 512,
    values: _Values = 1_000_000,
    option: HistoryOption = None,
    connections: _Connections = None,
    threads: _Threads = 1,
    outstanding_max: _Outstanding = 10_000,
    seed: _Seed = 0,
    token_file: TokenFileOption = None,
    ca: AuthorityOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Send requests to the node at ADDRESS and measure its answers; latency counts from when a request was due."""
    if concurrency is not None and (rate, search_goodput) != (None, None):
        message = "--concurrency cannot be combined with --rate or --search-goodput: waiting callers have no rate"
        raise UsageError(message, help="give only one of them")
    from streamlearn.access.token_file import read_token
    from streamlearn.apps import load_app
    from streamlearn.load.load_run import Load, LoadPlan
    from streamlearn.replay import stop_on_signals

    pace = (arrivals, _RATE if rate is None else rate) if concurrency is None else ("closed", float(concurrency))
    factor, lasts_s, every_s = option_numbers("--bursts", bursts, "FACTOR,LASTS_S,EVERY_S", "4,0.5,5")
    plan = LoadPlan(*pace, seconds, warmup_s, deadline_ms, seed, (factor, lasts_s, every_s), outstanding_max)  # type: ignore[arg-type]
    options = named_values(option)
    token = None if token_file is None else read_token(token_file).decode("latin-1")
    folder = load_app(app, set_ or ())
    drawn = draw_requests(
        folder, requests, requests_count, candidates_mean=candidates_mean, candidates_max=candidates_max,
        values=values, seed=seed, options=options,
    )  # fmt: skip
    name = model or folder.app.name
    infer_requests = list(drawn.requests(folder.app.features, name, version))
    is_http = "://" in address
    messages = [request.body() if is_http else request.encode() for request in infer_requests]
    connections = connections or (_HTTP_CONNECTIONS if is_http else _GRPC_CONNECTIONS)
    target = _target(address, infer_requests[0].path)
    load = Load(target, messages, token, authority=ca, connections=connections, threads=threads)
    load.ask(0)
    about = {
        "address": address,
        "model": name,
        "requests": requests,
        "requests_count": len(messages),
        "candidates_mean": round(float(drawn.candidates.mean()), 2),
        "request_bytes_mean": round(sum(map(len, messages)) / len(messages)),
    }
    with stop_on_signals() as stop:
        result, search = _run(load, plan, search_goodput, stop)
    if json:
        print_json(about | result_facts(result) | search)
    else:
        print_facts("bench-serve", dict(result_rows(about | search, result)))
    if not result.ok:
        raise typer.Exit(EXIT_FAILED)


def _target(address: str, path: str) -> str:
    """Append the path of a node's API to an HTTP address without a path."""
    parts = urlsplit(address) if "://" in address else None
    return address.rstrip("/") + path if parts and parts.netloc and not parts.path.strip("/") else address


def _run(load: Load, plan: LoadPlan, p99_ms_max: float | None, stop: Event) -> tuple[LoadResult, dict[str, Any]]:
    """Run at the planned rate, or at the highest rate that passes; also return the facts of that search."""
    if p99_ms_max is None:
        return load.run(plan, _show_progress(plan), stop.is_set), {}
    from streamlearn.load.goodput import find_goodput, why_not

    def try_rate(plan: LoadPlan) -> LoadResult:
        print(f"{plan.amount:,.1f} requests/s for {plan.seconds} s", end=": ", file=sys.stderr, flush=True)
        result = load.run(plan, None, stop.is_set)
        if stop.is_set():
            message = f"the search was stopped at {plan.amount:,.1f} requests/s"
            raise PartlyDone(message, help="let it finish, or measure a single rate with --rate")
        print(why_not(result, p99_ms_max) or "held", file=sys.stderr, flush=True)
        return result

    best = find_goodput(try_rate, plan, p99_ms_max)
    return best.run, search_facts(best, p99_ms_max)


def _show_progress(plan: LoadPlan) -> Callable[[LoadProgress], None]:
    begin_s, total_s = time.monotonic(), plan.seconds + plan.warmup_s

    def line(progress: LoadProgress) -> str:
        counts = f"{progress.ok:,} answered  {progress.failed:,} failed  {progress.outstanding:,} in flight"
        return f"{time.monotonic() - begin_s:.0f} of {total_s:.0f} s  {counts}"

    return progress_lines(line)
