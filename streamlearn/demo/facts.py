"""Facts: what came of a demo, and which of the project's promises it kept. Pure functions of what was seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from streamlearn.demo.board import Rows
from streamlearn.demo.story import Found

__all__ = ["Ended", "Facts", "Promise", "facts_of", "promises_of"]

Facts: TypeAlias = dict[str, Any]

# A node acts within 0.1 s where it has a processor; here all of the loop shares a few.
ROLLBACK_MS_MAX = 1_000.0
RECOVERED_S_MAX = 15.0
# How much of the AUC a bad version has to cost, to call it one.
BAD_AUC = 0.02


@dataclass(frozen=True)
class Ended:
    """What there was at the end.

    Attributes:
        impressions: How many were replayed.
        actions: Likewise.
        events_per_s: Likewise, a second.
        asked: Requests to nodes.
        unanswered: How many of them had no answer.
        letters: Dead letters.
        learned: What the newest version says all of its history learned, by name.
        labels: Of the application.
        skipped_rows: Rows that were shown in the poisoned stretch.
        versions: How many were published.
        rejected: How many of them the judge refused.
        served: By node, the version it answers with.
    """

    impressions: int
    actions: int
    events_per_s: float
    asked: int
    unanswered: int
    letters: int
    learned: Mapping[str, int]
    labels: int
    skipped_rows: int
    versions: int
    rejected: int
    served: tuple[int, ...]


@dataclass(frozen=True)
class Promise:
    """Something that is promised.

    Attributes:
        text: What.
        is_kept: Whether it was.
        seen: What was seen of it.
    """

    text: str
    is_kept: bool
    seen: str


def facts_of(found: Found, rows: Rows, ended: Ended, label: str) -> Facts:
    """Figures, by name.

    Args:
        found: What was seen on the way.
        rows: What was served, and what people did.
        ended: What there was at the end.
        label: The first label's name.
    """
    served, frozen = _compared(found, rows)
    before, bad, after = _around(found, rows)
    return {
        "impressions replayed, each scored before its actions": ended.impressions,
        "actions replayed": ended.actions,
        "replayed events/s": round(ended.events_per_s),
        "requests sent to nodes": ended.asked,
        "requests without an answer": ended.unanswered,
        "rows shown": len(rows),
        "samples learned": ended.learned["samples"],
        "labels learned": ended.learned["labels_learned"],
        "labels corrected": ended.learned["labels_corrected"],
        "versions published": ended.versions,
        "versions rejected by the judge": ended.rejected,
        f"served AUC of {label}": _rounded(served),
        f"AUC of {label} by version {found.frozen}, kept for comparison, on the same requests": _rounded(frozen),
        "served AUC before the bad version": _rounded(before),
        f"served AUC by version {found.forced}, the bad version": _rounded(bad),
        "served AUC after the rollback": _rounded(after),
        **{
            f"time until {name} answered with version {found.good} again, ms": round(ms, 1)
            for name, ms in found.acted_ms.items()
        },
        "the whole rollback command, ms": round(found.rollback_ms),
        "time until training continued after a shard was killed, s": round(found.killed_s, 2),
        "version at which training went back": found.reverted,
    }


def promises_of(found: Found, rows: Rows, ended: Ended) -> list[Promise]:
    """What is promised, and whether it was kept."""
    served, frozen = _compared(found, rows)
    before, bad, after = _around(found, rows)
    least, most = (count * ended.labels for count in (len(rows) - ended.skipped_rows, len(rows)))
    learned, slowest_ms = ended.learned["labels_learned"], max(found.acted_ms.values(), default=float("inf"))
    return [
        Promise("every request is answered", not ended.unanswered, f"{ended.unanswered} of {ended.asked} were not"),
        Promise("every event is joined", not ended.letters, f"{ended.letters} dead letters"),
        Promise(
            "each label is learned once, except poisoned ones",
            least <= learned <= most,
            f"{learned:,} labels learned; expected between {least:,} (not poisoned) and {most:,} (all)",
        ),
        Promise(
            "training continues after a shard is killed", found.killed_s <= RECOVERED_S_MAX, f"{found.killed_s:.1f} s"
        ),
        Promise(
            "the judge rejects the version that learned from poison", found.rejected > 0, f"version {found.rejected}"
        ),
        Promise(
            "the bad version lowers the served AUC",
            bad <= before - BAD_AUC,
            f"served AUC {before:.4f} before, {bad:.4f} with it",
        ),
        Promise(
            f"every node rolls back within {ROLLBACK_MS_MAX:.0f} ms",
            len(found.acted_ms) == len(ended.served) and slowest_ms <= ROLLBACK_MS_MAX,
            f"{len(found.acted_ms)} of {len(ended.served)} nodes, {slowest_ms:.0f} ms",
        ),
        Promise(
            "rolling back restores the quality of serving",
            after >= bad + BAD_AUC,
            f"served AUC {bad:.4f} with the bad version, {after:.4f} after the rollback",
        ),
        Promise(
            "fresh versions score better than a version that was kept",
            served > frozen,
            f"served AUC {served:.4f}, kept version {frozen:.4f}",
        ),
        Promise(
            "all nodes follow newer versions after the rewind",
            min(ended.served, default=0) > found.reverted > 0,
            f"nodes serve versions {', '.join(map(str, ended.served))}; version {found.reverted} was "
            "written by the rewind",
        ),
    ]


def _compared(found: Found, rows: Rows) -> tuple[float, float]:
    """The AUC of the first label as it was served and by the version that was kept, without what was forced."""
    begin, end = found.bad_rows
    parts = [rows.where(slice(0, begin)).compared, rows.where(slice(end, None)).compared]
    both = parts[0].joined(parts[1])
    return _known(both.auc(0)), _known(both.auc(0, kept=0))


def _around(found: Found, rows: Rows) -> tuple[float, float, float]:
    """The served AUC of the first label before, by and after the version that was forced; as many rows each."""
    begin, end = found.bad_rows
    mine = rows.where(slice(begin, end))
    forced = mine.where(mine.version == found.forced)
    count = end - begin
    rest = rows.where(slice(end, None))
    good = rest.where(rest.version == found.good)
    return (
        _known(rows.where(slice(max(0, begin - count), begin)).auc(0)),
        _known(forced.auc(0)),
        _known(good.where(slice(0, count)).auc(0)),
    )


def _known(auc: float | None) -> float:
    return float("nan") if auc is None else auc


def _rounded(auc: float) -> float | None:
    return None if auc != auc else round(auc, 4)
