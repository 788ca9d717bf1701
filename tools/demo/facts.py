"""Facts: the figures of a demo, and which of the project's promises it kept. Pure functions of observations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from streamlearn.online.served_check import ServedCheck
from tools.demo.board import Rows
from tools.demo.burst import CANDIDATES, TIMES, WORTH_MORE, Burst
from tools.demo.change import Takeover
from tools.demo.new_item import NewItem
from tools.demo.scenario import Observations
from tools.demo.worker_loss import WorkerLoss

__all__ = ["Facts", "Outcome", "Promise", "facts_of", "promises_of"]

Facts: TypeAlias = dict[str, Any]

# A node alone on a processor acts within 0.1 s; here the whole loop shares a few processors.
ROLLBACK_MS_MAX = 1_000.0
RECOVERED_S_MAX = 15.0
# One request alone and the same in a batch are computed in another order.
SCORE_DIFFERENCE_MAX = 1e-5
# The value that an overloaded node keeps, divided by the most that refusing requests could keep.
KEPT_TO_SHED_MIN = 1.3
# A version every three seconds, which the trainer writes, the judge passes and two busy nodes load.
FOUND_S_MAX = 20.0
# A version counts as bad if it lowers the served AUC by this much.
BAD_AUC = 0.02


@dataclass(frozen=True)
class Outcome:
    """The state at the end of the demo.

    Attributes:
        impressions: Impressions that were replayed.
        actions: Actions that were replayed.
        events_per_s: Replayed events per second.
        requests: Requests to nodes.
        repeated: Requests that a second node was asked.
        unanswered: Requests without an answer.
        refusal: Why a node did not answer one of them; empty if none was repeated.
        dead_letters: Dead letters of ingest.
        learned: Counts of the newest version over its whole history, by name.
        sent: How many labels of the samples must have been learned, and how many may have been.
        labels: Labels of the application.
        unlabelled: Those among them that an item without their action does not have.
        skipped_rows: Rows that were shown while the data was poisoned.
        versions: Published versions.
        rejected: Versions that the judge rejected.
        served: The version that each node answers with.
        takeover: How a changed application took over the callers.
        burst: What a node kept that was asked for more than it can do.
        unavailable: Rows that were scored with defaults, and are not learned.
        checked: Served values of computed columns, compared with their interactions; None without such columns.
    """

    impressions: int
    actions: int
    events_per_s: float
    requests: int
    repeated: int
    unanswered: int
    refusal: str
    dead_letters: int
    learned: Mapping[str, int]
    sent: tuple[int, int]
    labels: int
    skipped_rows: int
    versions: int
    rejected: int
    served: tuple[int, ...]
    takeover: Takeover
    burst: Burst
    unlabelled: int = 0
    unavailable: int = 0
    checked: ServedCheck | None = None


@dataclass(frozen=True)
class Promise:
    """A promise of the project, whether the demo kept it, and the figures that show it."""

    text: str
    is_kept: bool
    seen: str


def facts_of(observed: Observations, rows: Rows, outcome: Outcome, label: str) -> Facts:
    """Return the figures of a demo by name; `label` is the name of the first label."""
    served, frozen = _compared(observed, rows)
    before, bad, after = _around(observed, rows)
    burst, new = outcome.burst, outcome.takeover.new_item
    return {
        "impressions replayed, each scored before its actions": outcome.impressions,
        "actions replayed": outcome.actions,
        "replayed events/s": round(outcome.events_per_s),
        "requests sent to nodes": outcome.requests,
        "requests that another node was asked, since one refused": outcome.repeated,
        "requests without an answer": outcome.unanswered,
        "rows shown": len(rows),
        "samples learned": outcome.learned["samples"],
        "labels learned": outcome.learned["labels_learned"],
        "labels corrected": outcome.learned["labels_corrected"],
        "versions published": outcome.versions,
        "versions rejected by the judge": outcome.rejected,
        f"served AUC of {label}": _rounded(served),
        f"AUC of {label} by version {observed.frozen}, kept for comparison, on the same requests": _rounded(frozen),
        "served AUC before the bad version": _rounded(before),
        f"served AUC by version {observed.forced}, the bad version": _rounded(bad),
        "served AUC after the rollback": _rounded(after),
        **{
            f"time until {name} answered with version {observed.good} again, ms": round(ms, 1)
            for name, ms in observed.acted_ms.items()
        },
        "the whole rollback command, ms": round(observed.rollback_ms),
        "time until training continued after a shard was killed, s": round(observed.killed_s, 2),
        **_facts_of_worker(observed.worker),
        "version at which training went back": observed.reverted,
        "rows that the changed application began with": outcome.takeover.kept,
        "time until the changed application answered, ms": round(outcome.takeover.moved_ms[0]),
        "time until the application answered again, ms": round(outcome.takeover.moved_ms[-1]),
        "value kept at three times the rate of a node": round(burst.kept, 3),
        f"candidates scored of {CANDIDATES}, requests worth the same": round(burst.scored, 1),
        f"candidates scored of {CANDIDATES}, requests worth {WORTH_MORE:g} times as much": round(burst.scored_more, 1),
        f"candidates scored of {CANDIDATES}, the requests beside these": round(burst.scored_less, 1),
        "requests that the changed application answered": outcome.takeover.answered,
        **({} if new is None else {"time until all nodes found a new item, s": round(new.found_s, 2)}),
    }


def promises_of(observed: Observations, rows: Rows, outcome: Outcome) -> list[Promise]:
    """Return each promise, and whether the demo kept it."""
    served, frozen = _compared(observed, rows)
    before, bad, after = _around(observed, rows)
    learned_rows = len(rows) - outcome.skipped_rows - outcome.unavailable
    least = learned_rows * (outcome.labels - outcome.unlabelled)
    most = len(rows) * outcome.labels
    learned, slowest_ms = outcome.learned["labels_learned"], max(observed.acted_ms.values(), default=float("inf"))
    return [
        Promise(
            "every request is answered",
            not outcome.unanswered,
            f"{outcome.unanswered} of {outcome.requests} were not, {outcome.repeated} by the second node that was asked"
            f"{outcome.refusal and f' ({outcome.refusal})'}",
        ),
        Promise("every event is joined", not outcome.dead_letters, f"{outcome.dead_letters} dead letters"),
        Promise(
            "each label is learned once, except poisoned ones and those of unavailable columns",
            least <= learned <= most,
            f"{learned:,} labels learned; expected between {least:,} (neither) and {most:,} (all)",
        ),
        Promise(
            "training continues after a shard is killed",
            observed.killed_s <= RECOVERED_S_MAX,
            f"{observed.killed_s:.1f} s",
        ),
        *_of_worker(observed.worker, outcome),
        Promise(
            "the judge rejects the version that learned from poison",
            observed.rejected > 0,
            f"version {observed.rejected}",
        ),
        Promise(
            "the bad version lowers the served AUC",
            bad <= before - BAD_AUC,
            f"served AUC {before:.4f} before, {bad:.4f} with it",
        ),
        Promise(
            f"every node rolls back within {ROLLBACK_MS_MAX:.0f} ms",
            len(observed.acted_ms) == len(outcome.served) and slowest_ms <= ROLLBACK_MS_MAX,
            f"{len(observed.acted_ms)} of {len(outcome.served)} nodes, {slowest_ms:.0f} ms",
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
            min(outcome.served, default=0) > observed.reverted > 0,
            f"nodes serve versions {', '.join(map(str, outcome.served))}; version {observed.reverted} was "
            "written by the rewind",
        ),
        *_of_columns(observed, outcome),
        _of_burst(outcome.burst),
        Promise(
            "a changed application keeps what was learned, takes over and gives back",
            _has_taken_over(outcome.takeover),
            f"{outcome.takeover.unanswered} of {outcome.takeover.requests} requests unanswered"
            f"{outcome.takeover.refusal and f' ({outcome.takeover.refusal})'}, at most "
            f"{max(outcome.takeover.moved_ms):.0f} ms, scores differ by {outcome.takeover.difference:.0e}",
        ),
        *_of_new_item(outcome.takeover.new_item, len(outcome.served)),
    ]


def _facts_of_worker(loss: WorkerLoss | None) -> Facts:
    if loss is None:
        return {}
    return {
        "time until training continued after a worker was killed, s": round(loss.continued_s, 2),
        "time until that worker had started again and learned, s": round(loss.back_s, 2),
    }


def _of_worker(loss: WorkerLoss | None, outcome: Outcome) -> list[Promise]:
    """Return the promise on a worker, if there is one. All faults before the end show in its labels."""
    if loss is None:
        return []
    (least, most), learned = outcome.sent, outcome.learned["labels_learned"]
    sent = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    text = "training continues after a worker is killed, and the labels learned equal the labels sent"
    again = ", after its slice was learned again" if loss.held else ""
    seen = f"{loss.continued_s:.1f} s{again}; {learned:,} labels learned, {sent} sent"
    return [Promise(text, loss.continued_s <= RECOVERED_S_MAX and least <= learned <= most, seen)]


def _of_burst(burst: Burst) -> Promise:
    return Promise(
        "an overloaded node keeps more of the value of its answers than by refusing requests",
        burst.kept >= KEPT_TO_SHED_MIN / TIMES,
        f"{burst.kept:.0%} of the value at three times {burst.rate:,.0f} requests/s; refusing keeps {1 / TIMES:.0%} at "
        "most",
    )


def _of_columns(observed: Observations, outcome: Outcome) -> list[Promise]:
    """Return the promise on computed columns, if the application has any."""
    checked = outcome.checked
    if checked is None:
        return []
    is_kept = not checked.differences and checked.values > 0 and observed.away > 0
    seen = (
        f"{checked.differences} of {checked.values:,} values differ; {observed.away} requests got defaults while the "
        "store was unusable"
    )
    return [Promise("computed columns are served as interactions say, or with defaults", is_kept, seen)]


def _of_new_item(new: NewItem | None, nodes: int) -> list[Promise]:
    """Return the promises on retrieval, if a changed application declares it."""
    if new is None:
        return []
    slowest_ms = max(new.back_ms, default=float("inf"))
    is_back = len(new.back_ms) == nodes and slowest_ms <= ROLLBACK_MS_MAX and not new.left
    return [
        Promise(
            f"a new item is found within {FOUND_S_MAX:.0f} s, and lists are what the vectors of their version say",
            new.found_s <= FOUND_S_MAX and new.lists > 0 and not new.wrong,
            f"{new.found_s:.1f} s; {new.wrong or f'{new.lists} lists are as NumPy finds them in the files'}",
        ),
        Promise(
            "a rollback takes back the items that are found, too",
            is_back,
            f"{len(new.back_ms)} of {nodes} nodes, {slowest_ms:.0f} ms; "
            f"{new.left or 'all lists after it are of the version before, without the new item'}",
        ),
    ]


def _has_taken_over(takeover: Takeover) -> bool:
    return (
        not takeover.unanswered
        and takeover.answered > 0
        and takeover.kept > 0
        and max(takeover.moved_ms) <= ROLLBACK_MS_MAX
        and takeover.difference <= SCORE_DIFFERENCE_MAX
    )


def _compared(observed: Observations, rows: Rows) -> tuple[float, float]:
    """Return the AUC of the served scores and of the kept version, without rows scored by the forced version."""
    begin, end = observed.bad_rows
    parts = [rows.where(slice(0, begin)).compared, rows.where(slice(end, None)).compared]
    both = parts[0].joined(parts[1])
    return _known(both.auc(0)), _known(both.auc(0, kept=0))


def _around(observed: Observations, rows: Rows) -> tuple[float, float, float]:
    """Return the served AUC before, with and after the forced version, over equally many rows."""
    begin, end = observed.bad_rows
    bad = rows.where(slice(begin, end))
    forced = bad.where(bad.version == observed.forced)
    count = end - begin
    rest = rows.where(slice(end, None))
    good = rest.where(rest.version == observed.good)
    return (
        _known(rows.where(slice(max(0, begin - count), begin)).auc(0)),
        _known(forced.auc(0)),
        _known(good.where(slice(0, count)).auc(0)),
    )


def _known(auc: float | None) -> float:
    return float("nan") if auc is None else auc


def _rounded(auc: float) -> float | None:
    return None if auc != auc else round(auc, 4)
