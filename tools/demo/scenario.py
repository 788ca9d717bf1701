"""Scenario: the faults of the demo, one after another, and what was observed of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from streamlearn.versions import Known
from tools.demo.board import Board
from tools.demo.feed import Feed
from tools.demo.loop import Loop
from tools.demo.states import unusable_states
from tools.demo.worker_loss import WorkerLoss, lose_worker

__all__ = ["TIMELINE", "Observations", "Scenario", "Timeline"]

_WAIT_S_MAX, _LEARN_S_MAX = 60.0, 240.0
# The standard error of an AUC over this many rows is about 0.015.
_BAD_ROWS = 1_500
_FEATURE_REQUESTS = "streamlearn_serving_feature_requests_total"
_RECOVERIES = "streamlearn_trainer_recoveries_total"


@dataclass(frozen=True)
class Timeline:
    """When each step happens, as shares of the replayed event time.

    Attributes:
        kill: A shard is killed.
        lose_worker: A worker is killed.
        freeze: The version served now is kept; from here on it scores all requests too.
        away: The store of computed columns becomes unusable.
        back: It can be used again.
        poison: From here on the replay inverts the users' actions.
        force: A rejected version that has learned up to `learned` is promoted by force.
        learned: Until here a version has learned enough poison to lower the AUC visibly.
        roll_back: The forced version is rolled back.
        cure: The poison ends. Training goes back and skips the poisoned events.
    """

    kill: float = 0.2
    lose_worker: float = 0.26
    freeze: float = 0.35
    away: float = 0.41
    back: float = 0.45
    poison: float = 0.52
    force: float = 0.62
    learned: float = 0.57
    roll_back: float = 0.67
    cure: float = 0.7


TIMELINE = Timeline()


@dataclass
class Observations:
    """Observations made while the scenario runs.

    Attributes:
        killed_s: Seconds until training continued after a shard was killed.
        worker: What was seen when a worker was killed; None if there was none.
        frozen: The version kept for comparison.
        away: Requests that nodes answered with defaults, since the store of computed columns was unusable.
        rejected: The first version that the judge rejected after the poison began.
        why: The judge's reason.
        forced: The version that was served by force.
        good: The version that the rollback selected.
        acted_ms: Milliseconds that each node took to roll back.
        rollback_ms: Milliseconds that the whole command took.
        bad_rows: The board's rows that the forced version scored: the first, and the one after the last.
        reverted: The version that the rewind wrote.
        marks: Each event of the demo: seconds since the feed began, event time, and name.
    """

    killed_s: float = 0.0
    worker: WorkerLoss | None = None
    frozen: int = 0
    away: int = 0
    rejected: int = 0
    why: str = ""
    forced: int = 0
    good: int = 0
    acted_ms: dict[str, float] = field(default_factory=dict)
    rollback_ms: float = 0.0
    bad_rows: tuple[int, int] = (0, 0)
    reverted: int = 0
    marks: list[tuple[float, int, str]] = field(default_factory=list)


class Scenario:
    """Plays the scenario while a feed runs.

    Args:
        loop: The processes.
        board: Served scores and users' actions.
        span: The event times at which the feed begins and ends.
        tell: Receives a line for each event.
        timeline: When each step happens.

    Attributes:
        observations: The observations so far.
    """

    def __init__(
        self,
        loop: Loop,
        board: Board,
        span: tuple[int, int],
        tell: Callable[[str], None],
        timeline: Timeline = TIMELINE,
    ) -> None:
        self._loop, self._board, self._tell, self._timeline = loop, board, tell, timeline
        self._span, self._begin_s = span, time.monotonic()
        self.observations = Observations()

    def run(self, feed: Feed) -> Observations:
        """Play all steps, then wait until everything is learned and served.

        Raises:
            StreamlearnError: A step did not happen within its time.
        """
        self._feed, self._begin_s = feed, time.monotonic()
        self._kill()
        if self._loop.folder.settings.up.workers:
            self._lose_worker()
        self._freeze()
        self._take_states_away()
        self._poison()
        self._force()
        self._roll_back()
        self._cure()
        self._finish()
        return self.observations

    def _kill(self) -> None:
        self._reach(self._timeline.kill)
        self._note("shard-1 is killed", "killed")
        begin_s = time.monotonic()
        self._loop.kill("shard-1")
        self._wait(lambda: self._loop.metric("trainer", _RECOVERIES) > 0, "all shards to be restored")
        self.observations.killed_s = time.monotonic() - begin_s
        self._note(f"all shards are restored after {self.observations.killed_s:.1f} s; training continues", "")

    def _lose_worker(self) -> None:
        self._reach(self._timeline.lose_worker)
        self._note("worker-1 is stopped, and killed as soon as it holds a slice", "worker killed")
        loss = self.observations.worker = lose_worker(self._loop, self._wait)
        self._note(
            f"training continues after {loss.continued_s:.1f} s; the worker starts again, and learns a slice after "
            f"{loss.back_s:.1f} s", "",
        )  # fmt: skip

    def _freeze(self) -> None:
        self._reach(self._timeline.freeze)
        self._wait(lambda: self._active() > 1, "a version to be served")
        frozen = self._active()
        # A request for it may come to any node.
        self._wait(lambda: min(self._loop.served(), default=0) >= frozen, "all nodes to serve it")
        self.observations.frozen = self._feed.kept[0] = frozen
        self._note(f"version {self.observations.frozen} is kept for comparison: it scores every request too", "frozen")

    def _take_states_away(self) -> None:
        folder = self._loop.folder
        if not folder.app.features.entities:
            return
        self._reach(self._timeline.away)
        before = self._requests("unavailable")
        with unusable_states(folder):
            self._note("the store of computed columns becomes unusable", "states away")
            self._reach(self._timeline.back)
            self._wait(lambda: self._requests("unavailable") > before, "nodes to answer with defaults")
        self.observations.away, known = self._requests("unavailable") - before, self._requests("known")
        self._note(
            f"it can be used again; {self.observations.away} requests were answered with defaults", "states back"
        )
        self._wait(lambda: self._requests("known") > known, "nodes to compute columns again")

    def _requests(self, outcome: str) -> int:
        """Return the requests that all nodes answered with this outcome of reading states."""
        names = [f"node-{number + 1}" for number in range(len(self._loop.nodes))]
        return round(sum(self._loop.metric(name, _FEATURE_REQUESTS, outcome=outcome) for name in names))

    def _poison(self) -> None:
        self._reach(self._timeline.poison)
        before = self._versions()[-1].version
        self._note("from now on the replay inverts the users' actions", "poisoned")

        def rejected() -> int:
            return next(
                (known.version for known in self._versions() if known.version > before and known.outcome == "rejected"),
                0,
            )

        self._wait(lambda: rejected() > 0, "the judge to reject a version")
        version = self.observations.rejected = rejected()
        self.observations.why = self._why(version)
        self.observations.good = self._active()
        self._note(f"the judge rejects version {version}: {self.observations.why}", "refused")

    def _force(self) -> None:
        self._reach(self._timeline.force)
        learned_ms = self.event_ms(self._timeline.learned)
        self._wait(lambda: (self._versions()[-1].watermark_ms or 0) >= learned_ms, "training to learn from poison")
        bad = self._versions()[-1]
        self.observations.forced, first = bad.version, len(self._board)
        self._loop.verb("promote", str(bad.version), "--accept", "--reason", "the demo forces it to show the effect")
        self._note(f"the bad version {bad.version} is forced: streamlearn promote {bad.version} --accept", "forced")
        self._reach(self._timeline.roll_back)
        # On a slow machine the judge may take most of the poisoned time.
        cure_ms, wanted = self.event_ms(self._timeline.cure), first + _BAD_ROWS
        self._wait(
            lambda: len(self._board) >= wanted or self._feed.event_ms >= cure_ms,
            "the bad version to serve enough requests",
        )
        self.observations.bad_rows = first, len(self._board)

    def _roll_back(self) -> None:
        begin_s, good = time.perf_counter(), self.observations.good
        result = self._loop.verb("rollback", "--to", str(good), "--reason", "the served AUC fell")
        self.observations.rollback_ms = (time.perf_counter() - begin_s) * 1e3
        self.observations.acted_ms = {node["node"]: node["ms"] for node in result["acted"]}
        times = ", ".join(f"{name} {ms:.0f} ms" for name, ms in self.observations.acted_ms.items())
        self._note(f"streamlearn rollback --to {good}: {times}", "rolled back")

    def _cure(self) -> None:
        self._reach(self._timeline.cure)
        before, begin_ms, end_ms = self._versions()[-1].version, *self.poisoned
        clean = [known for known in self._versions() if known.version <= self.observations.good]
        to = max(known.version for known in clean if (known.watermark_ms or 0) <= begin_ms)
        self._loop.verb("rewind", "--to", str(to), "--skip", f"{begin_ms}..{end_ms}", "--reason", "poisoned")
        self._note(f"training goes back to version {to} and skips the poisoned events: streamlearn rewind", "rewound")

        def reverted() -> int:
            return next((known.version for known in self._versions() if known.version > before and known.content_of), 0)

        self._wait(lambda: reverted() > 0, "training to go back")
        self.observations.reverted = reverted()
        self._wait(lambda: self._is_good(self.observations.reverted), "the judge to pass the version")
        self._loop.verb("release", "--reason", "training was rewound")
        self._note("serving follows new versions again: streamlearn release", "released")

    def _finish(self) -> None:
        self._wait(lambda: self._feed.report is not None, "the feed to end", _LEARN_S_MAX)
        self._note("all events are replayed", "")
        state = {"process": "ingest", "state": "ended"}
        metric = "streamlearn_supervision_state_processes"
        self._wait(lambda: self._loop.metric("up", metric, **state) > 0, "ingest to end", _LEARN_S_MAX)
        ends = self._loop.ends("samples")

        def learned() -> int:
            newest = self._versions()[-1]
            return newest.version if self._loop.has_learned(newest, ends) else 0

        self._wait(lambda: learned() > 0, "the trainer to learn all samples", _LEARN_S_MAX)
        last = learned()
        self._wait(lambda: self._active() >= last, f"nodes to serve version {last}", _LEARN_S_MAX)
        self._wait(lambda: all(version >= last for version in self._loop.served()), "nodes to follow")
        self._note(f"all labels are learned; all nodes answer with version {last}", "")

    @property
    def poisoned(self) -> tuple[int, int]:
        """The event times between which actions are inverted."""
        return self.event_ms(self._timeline.poison), self.event_ms(self._timeline.cure)

    def event_ms(self, share: float) -> int:
        """Return the event time at a share of the replay."""
        begin_ms, end_ms = self._span
        return begin_ms + round((end_ms - begin_ms) * share)

    def _reach(self, share: float) -> None:
        at_ms = self.event_ms(share)
        self._wait(lambda: self._feed.event_ms >= at_ms, f"{share:.0%} of the events to be replayed", _LEARN_S_MAX)

    def _active(self) -> int:
        active = self._loop.model.pointer.active
        return 0 if active is None else active.version

    def _versions(self) -> Sequence[Known]:
        return self._loop.versions()

    def _is_good(self, version: int) -> bool:
        return any(known.version == version and known.has_passed for known in self._versions())

    def _why(self, version: int) -> str:
        verdict = self._loop.verdict(version)
        return "; ".join(f"{finding.check}: {finding.said}" for finding in verdict.findings if not finding.is_ok)

    def _wait(self, is_so: Callable[[], bool], what: str, wait_s: float = _WAIT_S_MAX) -> None:
        def checked() -> bool:
            _ = self._feed.report  # raises the error that ended the feed
            return is_so()

        self._loop.wait(checked, what, wait_s)

    def _note(self, line: str, mark: str) -> None:
        if mark:
            self.observations.marks.append((time.monotonic() - self._begin_s, self._feed.event_ms, mark))
        self._tell(line)
