"""Story: what befalls the loop while it runs, one thing after another, and what was seen of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from streamlearn.demo.board import Board
from streamlearn.demo.feed import Feed
from streamlearn.demo.loop import Loop
from streamlearn.versions import Known

__all__ = ["ACTS", "Acts", "Found", "Story"]

_WAIT_S_MAX, _LEARN_S_MAX = 60.0, 240.0
# An AUC of so many rows is known to about 0.015.
_LOOKED_ROWS = 1_500
_METER = "streamlearn_trainer_recoveries_total"


@dataclass(frozen=True)
class Acts:
    """When something happens, as shares of the event time that is replayed.

    Attributes:
        kill: A shard is killed.
        freeze: From here on all requests are put to a version of now too.
        poison: What people did is told the wrong way round from here on.
        force: The judge's refusal is overruled, of a version that has learned up to `learned`.
        learned: By which it has learned enough of the poison to be seen.
        roll_back: And that is taken back.
        cure: Until here. Training is put back, and skips what lies between.
    """

    kill: float = 0.2
    freeze: float = 0.35
    poison: float = 0.52
    force: float = 0.62
    learned: float = 0.57
    roll_back: float = 0.67
    cure: float = 0.7


ACTS = Acts()


@dataclass
class Found:
    """What was seen.

    Attributes:
        killed_s: How long training took to go on after a shard was killed.
        frozen: The version that was kept.
        rejected: The version that the judge refused first after the poison began, and why.
        forced: The version that was served all the same.
        good: The version that was gone back to.
        acted_ms: How long each node took for that.
        rollback_ms: How long the whole command took.
        bad_rows: Rows of the board served by what was forced: the first, and the one after the last.
        reverted: The version that says that training was put back.
        marks: What happened when: seconds since the feed began, event time, and what.
    """

    killed_s: float = 0.0
    frozen: int = 0
    rejected: int = 0
    why: str = ""
    forced: int = 0
    good: int = 0
    acted_ms: dict[str, float] = field(default_factory=dict)
    rollback_ms: float = 0.0
    bad_rows: tuple[int, int] = (0, 0)
    reverted: int = 0
    marks: list[tuple[float, int, str]] = field(default_factory=list)


class Story:
    """Carries it out while a feed runs.

    Args:
        loop: The processes.
        board: What was served, and what people did.
        span: The event times at which the feed begins and ends.
        tell: Told what happens, in a line.
        acts: When.

    Attributes:
        found: What was seen so far.
    """

    def __init__(
        self,
        loop: Loop,
        board: Board,
        span: tuple[int, int],
        tell: Callable[[str], None],
        acts: Acts = ACTS,
    ) -> None:
        self._loop, self._board, self._tell, self._acts = loop, board, tell, acts
        self._span, self._begun_s = span, time.monotonic()
        self.found = Found()

    def run(self, feed: Feed) -> Found:
        """All of it, until the feed has ended and everything is learned and served.

        Args:
            feed: What is replayed.

        Raises:
            StreamlearnError: Something did not come to be.
        """
        self._feed, self._begun_s = feed, time.monotonic()
        self._kill()
        self._freeze()
        self._poison()
        self._force()
        self._roll_back()
        self._cure()
        self._finish()
        return self.found

    def _kill(self) -> None:
        self._reach(self._acts.kill)
        self._note("shard-1 is killed", "killed")
        begun_s = time.monotonic()
        self._loop.kill("shard-1")
        self._wait(lambda: self._loop.meter("trainer", _METER) > 0, "all shards to be restored")
        self.found.killed_s = time.monotonic() - begun_s
        self._note(f"all shards are restored after {self.found.killed_s:.1f} s; training continues", "")

    def _freeze(self) -> None:
        self._reach(self._acts.freeze)
        self._wait(lambda: self._active() > 1, "a version to be served")
        self.found.frozen = self._feed.kept[0] = self._active()
        self._note(f"version {self.found.frozen} is kept for comparison: it scores every request too", "frozen")

    def _poison(self) -> None:
        self._reach(self._acts.poison)
        before = self._versions()[-1].version
        self._note("from now on the replay inverts the users' actions", "poisoned")

        def refused() -> Known | None:
            return next((one for one in self._versions() if one.version > before and one.outcome == "rejected"), None)

        self._wait(lambda: refused() is not None, "the judge to reject a version")
        one = refused()
        assert one is not None
        self.found.rejected, self.found.why = one.version, self._why(one.version)
        self.found.good = self._active()
        self._note(f"the judge rejects version {one.version}: {self.found.why}", "refused")

    def _force(self) -> None:
        self._reach(self._acts.force)
        learned_ms = self.event_ms(self._acts.learned)
        self._wait(lambda: (self._versions()[-1].watermark_ms or 0) >= learned_ms, "training to learn from poison")
        bad = self._versions()[-1]
        self.found.forced, first = bad.version, len(self._board)
        self._loop.verb("promote", str(bad.version), "--accept", "--reason", "the demo forces it to show the effect")
        self._note(f"the bad version {bad.version} is forced: streamlearn promote {bad.version} --accept", "forced")
        self._reach(self._acts.roll_back)
        # On a slow machine the judge may have taken most of the stretch.
        cure_ms, wanted = self.event_ms(self._acts.cure), first + _LOOKED_ROWS
        self._wait(
            lambda: len(self._board) >= wanted or self._feed.event_ms >= cure_ms,
            "the bad version to serve enough requests",
        )
        self.found.bad_rows = first, len(self._board)

    def _roll_back(self) -> None:
        begun_s, good = time.perf_counter(), self.found.good
        said = self._loop.verb("rollback", "--to", str(good), "--reason", "the served AUC to fall")
        self.found.rollback_ms = (time.perf_counter() - begun_s) * 1e3
        self.found.acted_ms = {one["node"]: one["ms"] for one in said["acted"]}
        times = ", ".join(f"{name} {ms:.0f} ms" for name, ms in self.found.acted_ms.items())
        self._note(f"streamlearn rollback --to {good}: {times}", "rolled back")

    def _cure(self) -> None:
        self._reach(self._acts.cure)
        before, begin_ms, end_ms = self._versions()[-1].version, *self.poisoned
        clean = [one for one in self._versions() if one.version <= self.found.good]
        to = max(one.version for one in clean if (one.watermark_ms or 0) <= begin_ms)
        self._loop.verb("rewind", "--to", str(to), "--skip", f"{begin_ms}..{end_ms}", "--reason", "poisoned")
        self._note(f"training goes back to version {to} and skips the poisoned events: streamlearn rewind", "rewound")

        def reverted() -> int:
            return next((one.version for one in self._versions() if one.version > before and one.content_of), 0)

        self._wait(lambda: reverted() > 0, "training to go back")
        self.found.reverted = reverted()
        self._wait(lambda: self._is_good(self.found.reverted), "the judge to pass the version")
        self._loop.verb("release", "--reason", "training was rewound")
        self._note("serving follows new versions again: streamlearn release", "released")

    def _finish(self) -> None:
        self._wait(lambda: self._feed.report is not None, "the feed to end", _LEARN_S_MAX)
        self._note("all events are replayed", "")
        state = {"process": "ingest", "state": "ended"}
        meter = "streamlearn_supervision_state_processes"
        self._wait(lambda: self._loop.meter("up", meter, **state) > 0, "ingest to end", _LEARN_S_MAX)
        ends = self._loop.ends("samples")

        def learned() -> int:
            newest = self._versions()[-1]
            return newest.version if self._loop.has_learned(newest, ends) else 0

        self._wait(lambda: learned() > 0, "the trainer to learn all samples", _LEARN_S_MAX)
        last = learned()
        self._wait(lambda: self._active() >= last, f"nodes to serve version {last}", _LEARN_S_MAX)
        self._wait(lambda: all(one >= last for one in self._loop.served()), "nodes to follow")
        self._note(f"all labels are learned; all nodes answer with version {last}", "")

    @property
    def poisoned(self) -> tuple[int, int]:
        """The stretch of event time that is poisoned."""
        return self.event_ms(self._acts.poison), self.event_ms(self._acts.cure)

    def event_ms(self, share: float) -> int:
        """The event time at a share of all of it."""
        begin_ms, end_ms = self._span
        return begin_ms + round((end_ms - begin_ms) * share)

    def _reach(self, share: float) -> None:
        at_ms = self.event_ms(share)
        self._wait(lambda: self._feed.event_ms >= at_ms, f"{share:.0%} of the events to be replayed", _LEARN_S_MAX)

    def _active(self) -> int:
        active = self._loop.model.pointer.active
        return 0 if active is None else active.version

    def _versions(self) -> Sequence[Known]:
        return self._loop.known()

    def _is_good(self, version: int) -> bool:
        return any(one.version == version and one.outcome == "passed" for one in self._versions())

    def _why(self, version: int) -> str:
        verdict = self._loop.verdict(version)
        return "; ".join(f"{one.check}: {one.said}" for one in verdict.findings if not one.is_ok)

    def _wait(self, is_so: Callable[[], bool], what: str, wait_s: float = _WAIT_S_MAX) -> None:
        def looked() -> bool:
            _ = self._feed.report  # raises what ended it
            return is_so()

        self._loop.wait(looked, what, wait_s)

    def _note(self, line: str, mark: str) -> None:
        if mark:
            self.found.marks.append((time.monotonic() - self._begun_s, self._feed.event_ms, mark))
        self._tell(line)
