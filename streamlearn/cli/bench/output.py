"""The result of `streamlearn bench-serve`, as rows of a table or for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamlearn.load.goodput import GoodputFound
    from streamlearn.load.load_run import LoadResult

__all__ = ["result_facts", "result_rows", "search_facts"]

_QUANTILES = {"mean": "mean", "p50": "p50", "p90": "p90", "p99": "p99", "p999": "p99.9", "max": "max"}


def result_facts(result: LoadResult) -> dict[str, Any]:
    """Return all figures of a run."""
    plan = result.plan
    counts = ("due", "ok", "in_time", "failed", "overrun", "unanswered")
    return {
        "pace": plan.pace,
        **({"concurrency": int(plan.amount)} if plan.pace == "closed" else {"rate_per_s": plan.amount}),
        "seconds": round(result.seconds, 3),
        "warmup_s": plan.warmup_s,
        "deadline_ms": plan.deadline_ms,
        "seed": plan.seed,
        **{name: getattr(result, name) for name in counts},
        "refused": dict(result.refused),
        "said": dict(result.said),
        "goodput_per_s": round(result.goodput_per_s, 2),
        "latency_ms": _rounded(result.latency_ms),
        "lag_ms": _rounded(result.lag_ms),
        "answer_bytes_mean": round(result.answer_bytes / result.ok, 1) if result.ok else None,
        "own_cpu_us": round(result.own_cpu_us, 1),
        "time_line": [
            {"second": second, "due": due, "ok": ok, "p99_ms": None if p99_ms is None else round(p99_ms, 3)}
            for second, (due, ok, p99_ms) in enumerate(result.time_line)
        ],
    }


def search_facts(best: GoodputFound, p99_ms_max: float) -> dict[str, Any]:
    """Return the short runs of a search, and the long runs that confirmed it."""
    runs = {"tries": best.tries, "confirms": best.confirms}
    return {
        "p99_ms_max": p99_ms_max,
        **{kind: [{"rate_per_s": rate, "failed": why} for rate, why in of_kind] for kind, of_kind in runs.items()},
    }


def result_rows(about: Mapping[str, Any], result: LoadResult) -> Iterator[tuple[str, Any]]:
    """Return the rows of a table: the arguments of the run, then its figures."""
    yield from ((name.replace("_", " "), value) for name, value in about.items() if not isinstance(value, list))
    paced = f"{result.plan.amount:,.1f} requests/s, {result.plan.pace}"
    yield "pace", f"{result.plan.amount:.0f} callers" if result.plan.pace == "closed" else paced
    yield "seconds", round(result.seconds, 2)
    yield "due", result.due
    yield "answered", result.ok
    yield "failed", result.failed
    failures = {"overrun": result.overrun, "unanswered": result.unanswered} | dict(result.refused)
    yield from ((f"  {name}", f"{count:,}  {result.said.get(name, '')}") for name, count in failures.items() if count)
    within = "" if result.plan.deadline_ms is None else f", within {result.plan.deadline_ms} ms"
    yield f"goodput{within}", f"{result.goodput_per_s:,.1f} requests/s"
    yield from ((f"latency {shown}", _ms(result.latency_ms[name])) for name, shown in _QUANTILES.items())
    slow = [(p99_ms, second) for second, (_, _, p99_ms) in enumerate(result.time_line) if p99_ms is not None]
    if slow:
        yield "slowest second", f"p99 {max(slow)[0]:,.2f} ms in second {max(slow)[1]}"
    yield "sent late, p99", _ms(result.lag_ms["p99"])
    yield "own CPU of a request", f"{result.own_cpu_us:.1f} us"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f} ms"


def _rounded(times_ms: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if time_ms is None else round(time_ms, 4) for name, time_ms in times_ms.items()}
