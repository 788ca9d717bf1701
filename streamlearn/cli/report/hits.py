"""Hits: the hit rates of retrieval by day, from what versions say of the positives that were learned after the last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from streamlearn.cli.report.span import times_ms_of
from streamlearn.times import time_text
from streamlearn.versions import Known

__all__ = ["HITS", "hits_of"]

HITS = "Hit rates of retrieval, before each positive was learned, and of popularity"
_HIT, _POPULAR, _POSITIVES = "retrieval_hit_100", "retrieval_popular_100", "retrieval_positives"


def hits_of(versions: Sequence[Known], begin: str, end: str) -> list[dict[str, Any]]:
    """Return a row for each day in UTC, over the versions that learned up to a time between two, given as texts.

    The rate of popularity is None on a day on which no version has it.
    """
    begin_ms, end_ms = times_ms_of(begin, end)
    days: dict[str, list[Known]] = defaultdict(list)
    for known in versions:
        time_ms = known.watermark_ms
        # A revert repeats the metrics of another version.
        if time_ms is None or known.content_of is not None or not known.metrics.get(_POSITIVES):
            continue
        if (begin_ms is None or begin_ms <= time_ms) and (end_ms is None or time_ms <= end_ms):
            days[time_text(time_ms)[:10]].append(known)
    return [
        {
            "day": day,
            "positives": round(sum(known.metrics[_POSITIVES] for known in of_day)),
            "items": round(max(known.metrics.get("library_items", 0.0) for known in of_day)),
            "top 100": _mean(of_day, _HIT),
            "popular 100": _mean(of_day, _POPULAR),
        }
        for day, of_day in days.items()
    ]


def _mean(versions: Sequence[Known], name: str) -> float | None:
    """Return the mean of a rate over the positives of the versions that have it."""
    pairs = [(known.metrics[name], known.metrics[_POSITIVES]) for known in versions if name in known.metrics]
    return round(sum(rate * count for rate, count in pairs) / sum(count for _, count in pairs), 4) if pairs else None
