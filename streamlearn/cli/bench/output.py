"""How `streamlearn bench-serve` says what it found: as a table, or as what JSON holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamlearn.serving.load.goodput import GoodputFound
    from streamlearn.serving.load.load_run import LoadFound

__all__ = ["facts_of", "rows_of_facts", "searched"]

_QUANTILES = {"mean": "mean", "p50": "p50", "p90": "p90", "p99": "p99", "p999": "p99.9", "max": "max"}


def facts_of(found: LoadFound) -> dict[str, Any]:
    """All that a run found."""
    plan = found.plan
    counts = ("due", "ok", "in_time", "failed", "overrun", "unanswered")
    return {
        "pace": plan.pace,
        **({"concurrency": int(plan.amount)} if plan.pace == "closed" else {"rate_per_s": plan.amount}),
        "seconds": round(found.seconds, 3),
        "warmup_s": plan.warmup_s,
        "deadline_ms": plan.deadline_ms,
        "seed": plan.seed,
        **{name: getattr(found, name) for name in counts},
        "refused": dict(found.refused),
        "said": dict(found.said),
        "goodput_per_s": round(found.goodput_per_s, 2),
        "latency_ms": _rounded(found.latency_ms),
        "lag_ms": _rounded(found.lag_ms),
        "answer_bytes_mean": round(found.answer_bytes / found.ok, 1) if found.ok else None,
        "own_cpu_us": round(found.own_cpu_us, 1),
        "time_line": [
            {"second": second, "due": due, "ok": ok, "p99_ms": None if p99_ms is None else round(p99_ms, 3)}
            for second, (due, ok, p99_ms) in enumerate(found.time_line)
        ],
    }


def searched(best: GoodputFound, p99_ms_max: float) -> dict[str, Any]:
    """The result of a search, beside the run that confirmed it."""
    tried = {"tries": best.tries, "confirms": best.confirms}
    return {
        "p99_ms_max": p99_ms_max,
        **{name: [{"rate_per_s": rate, "failed": why} for rate, why in of] for name, of in tried.items()},
    }


def rows_of_facts(about: Mapping[str, Any], found: LoadFound) -> list[dict[str, Any]]:
    """The lines of a table: what was asked, what came of it."""
    return [{"bench-serve": name, "": value} for name, value in _lines(about, found)]


def _lines(about: Mapping[str, Any], found: LoadFound) -> Iterator[tuple[str, Any]]:
    yield from ((name.replace("_", " "), value) for name, value in about.items() if not isinstance(value, list))
    paced = f"{found.plan.amount:,.1f} requests/s, {found.plan.pace}"
    yield "pace", f"{found.plan.amount:.0f} callers" if found.plan.pace == "closed" else paced
    yield "seconds", round(found.seconds, 2)
    yield "due", found.due
    yield "answered", found.ok
    yield "failed", found.failed
    causes = {"overrun": found.overrun, "unanswered": found.unanswered} | dict(found.refused)
    yield from ((f"  {name}", f"{count:,}  {found.said.get(name, '')}") for name, count in causes.items() if count)
    within = "" if found.plan.deadline_ms is None else f", within {found.plan.deadline_ms} ms"
    yield f"goodput{within}", f"{found.goodput_per_s:,.1f} requests/s"
    yield from ((f"latency {shown}", _ms(found.latency_ms[name])) for name, shown in _QUANTILES.items())
    slow = [(p99_ms, second) for second, (_, _, p99_ms) in enumerate(found.time_line) if p99_ms is not None]
    if slow:
        yield "slowest second", f"p99 {max(slow)[0]:,.2f} ms in second {max(slow)[1]}"
    yield "sent late, p99", _ms(found.lag_ms["p99"])
    yield "own CPU of a request", f"{found.own_cpu_us:.1f} us"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f} ms"


def _rounded(times_ms: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if one is None else round(one, 4) for name, one in times_ms.items()}
