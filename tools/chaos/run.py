"""Run: a loop that is fed, struck again and again, and looked at when all is over."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from streamlearn.apps import load_app
from streamlearn.errors import StreamlearnError
from streamlearn.replay import History, HistoryBlock, load_history
from tools.chaos.faults import QUICK, faults_of
from tools.chaos.ground import Ground
from tools.chaos.heard import Heard
from tools.chaos.invariants import answers, learned, named, verified
from tools.chaos.late import LateNode
from tools.chaos.plan import planned
from tools.chaos.settled import ends_of_rows, read_settled
from tools.chaos.turning import Turning
from tools.demo import Board, Feed, Loop, Witness
from tools.demo.place import one_machine_settings
from tools.demo.poison import span_of
from tools.services import KafkaCluster, Service

__all__ = ["Outcome", "Wanted", "run"]

_EXAMPLE = Path(__file__).parents[2] / "examples" / "kuairand"
_END_S_MAX = 300.0
# Before this a fault must be over; the rest is what the feed has to itself.
_LAST_S, _LONG_S = 60.0, 600.0
_ROWS_PER_S_MAX = 400.0
_SETTINGS = (
    "up.restarts_max=1000",
    "up.backoff_ms_max=1000",
    # How good versions are is not the matter, and noise of small ones is no violation.
    "judge.scored_rows_min=1099511627776",
    "judge.norm_ratio_max=0",
)


@dataclass(frozen=True)
class Wanted:
    """What is asked for.

    Attributes:
        seconds: How long there is load.
        seed: Where chance comes from.
        whole_s_max: How long after a fault the loop may take to be whole again.
        is_quick: Whether few kinds of faults are drawn from.
        faults_max: After how many faults the load ends, before its time; 0 for any number.
        only: Texts of which a fault's name has to have one; none for all faults.
    """

    seconds: float
    seed: int
    whole_s_max: float = 60.0
    is_quick: bool = False
    faults_max: int = 0
    only: tuple[str, ...] = ()

    @property
    def away_s(self) -> float:
        """How long services are away: a minute where there is time for it."""
        return 60.0 if self.seconds >= _LONG_S else 20.0


@dataclass
class Outcome:
    """What came of it.

    Attributes:
        took_s: By fault, how long the loop took to be whole again, each time.
        violations: What did not hold.
        rows: Rows shown.
        asked: Requests.
        unanswered: How many of them had no answer.
        versions: How many were published.
        compared: Replies of the way that were asked for anew, of each version that was looked at.
    """

    took_s: dict[str, list[float]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    rows: int = 0
    asked: int = 0
    unanswered: int = 0
    versions: int = 0
    compared: list[int] = field(default_factory=list)


class _Begin:
    """The first part of a history.

    Args:
        history: All of it.
        until_ms: Where it ends.
    """

    def __init__(self, history: History, until_ms: int) -> None:
        self._history, self._until_ms = history, until_ms

    events_count = None

    def cut(self) -> None:
        """End it where it is."""
        self._until_ms = 0

    @property
    def begin_ms(self) -> int:
        """See `History`."""
        return self._history.begin_ms

    def blocks(self, span_ms: int) -> Iterator[HistoryBlock]:
        """See `History`."""
        for block in self._history.blocks(span_ms):
            if block.until_ms > self._until_ms:
                return
            yield block


def run(
    wanted: Wanted,
    place: Path,
    services: Mapping[str, Service | KafkaCluster],
    changes: tuple[str, ...],
    tell: Callable[[str], None],
) -> Outcome:
    """Carry it out.

    Args:
        wanted: How long, and by which seed.
        place: A folder for all of it.
        services: What the loop stands on, by name; none where it stands on files.
        changes: What `--set` says of them.
        tell: Told what happens.
    """
    outcome, heard = Outcome(), Heard()
    history = load_history(_EXAMPLE, {"delayed": "0.05"})
    begin_ms, end_ms = span_of(history)
    share = min(1.0, wanted.seconds * _ROWS_PER_S_MAX / 94_000)
    until_ms = begin_ms + round((end_ms - begin_ms) * share)
    speed = (until_ms - begin_ms) / 1_000 / wanted.seconds
    changes = (*one_machine_settings(place, speed), *_SETTINGS, *changes)
    folder = load_app(_EXAMPLE, changes)
    board = Board(folder.app)
    with ExitStack() as ends:
        loop = ends.enter_context(closing(Loop(folder, changes, place, 2, 2)))
        loop.wait_up()
        tell("the loop is up")
        begin = _Begin(history, until_ms)
        turning = Turning(begin, folder.app)
        # What is told is what there is to learn, also where it is the wrong way round.
        witness = Witness(turning, board.did)
        feed = ends.enter_context(closing(Feed(folder, witness, loop.nodes, board, speed, on_answer=heard)))
        chance = random.Random(wanted.seed)
        ground = Ground(
            folder,
            changes,
            loop,
            feed,
            turning=turning,
            speed=speed,
            heard=heard,
            chance=chance,
            services=services,
            place=place,
        )
        _strike(ground, wanted, outcome, tell)
        begin.cut()
        try:
            _look(ground, board, outcome, tell)
        except StreamlearnError as error:
            outcome.violations.append(f"the end: {error.message}")
    outcome.rows, outcome.asked, outcome.unanswered = len(board), feed.requests, feed.unanswered
    return outcome


def _strike(ground: Ground, wanted: Wanted, outcome: Outcome, tell: Callable[[str], None]) -> None:
    """One fault after another, each when the loop is whole again, while there is load."""
    faults = faults_of(ground, wanted.away_s)
    ends_s = time.monotonic() + wanted.seconds - _LAST_S
    names = [name for name in faults if name in QUICK] if wanted.is_quick else list(faults)
    names = [name for name in names if not wanted.only or any(one in name for one in wanted.only)]
    ground.wait_whole(wanted.whole_s_max)
    for quiet_s, name in planned(wanted.seed, names):
        struck = sum(map(len, outcome.took_s.values())) + len(outcome.violations)
        if time.monotonic() + quiet_s >= ends_s or (wanted.faults_max and struck >= wanted.faults_max):
            return
        time.sleep(quiet_s)
        tell(name)
        begun_s, unanswered = time.monotonic(), ground.feed.unanswered
        try:
            faults[name](ground)
            struck_s = time.monotonic()
            ground.wait_whole(wanted.whole_s_max)
        except StreamlearnError as error:
            ground.loop.check()
            outcome.violations.append(f"{name}, after {time.monotonic() - begun_s:.0f} s: {error.message}")
            tell(f"VIOLATION: {outcome.violations[-1]}")
            continue
        lost = ground.feed.unanswered - unanswered
        if lost and "node" not in name:
            outcome.violations.append(f"{name}: {lost} requests had no answer, though no node was struck")
            tell(f"VIOLATION: {outcome.violations[-1]}")
        outcome.took_s.setdefault(name, []).append(time.monotonic() - struck_s)
        tell(f"  whole again after {outcome.took_s[name][-1]:.1f} s")


def _look(ground: Ground, board: Board, outcome: Outcome, tell: Callable[[str], None]) -> None:
    """Wait until everything is learned and served, then hold it against what was shown."""
    loop, feed = ground.loop, ground.feed
    loop.wait(lambda: feed.report is not None, "the feed to end", _END_S_MAX)
    tell("everything was shown; ingest ends, training learns the rest")
    state = {"process": "ingest", "state": "ended"}
    loop.wait(
        lambda: loop.metric("up", "streamlearn_supervision_state_processes", **state) > 0, "ingest to end", _END_S_MAX
    )
    ends = ends_of_rows(ground.folder)
    loop.wait(lambda: loop.has_learned(ground.newest, ends), "all samples to be learned", _END_S_MAX)
    last = ground.newest
    loop.wait(lambda: ground.active >= last.version, f"version {last.version} to be served", _END_S_MAX)
    loop.wait(lambda: all(one >= last.version for one in loop.served()), "nodes to follow", _END_S_MAX)
    outcome.versions = len(loop.versions())
    tell("everything is learned and served; it is held against what was shown")
    outcome.violations += learned(
        board, [one.name for one in ground.folder.app.labels], read_settled(ground.folder), ground.newest.metrics
    )
    if loop.dead_letters:
        outcome.violations.append(f"{loop.dead_letters} dead letters")
    outcome.violations += [*verified(ground), *named(ground)]
    with closing(LateNode(ground)) as late:
        outcome.violations += answers(ground, late, outcome.compared.append)
