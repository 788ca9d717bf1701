"""Run: one chaos test: start the loop, feed it, inject faults, then check the invariants."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from streamlearn.apps import AppFolder, load_app
from streamlearn.errors import StreamlearnError
from streamlearn.replay import History, HistoryBlock, load_history
from tools.chaos.answer_log import AnswerLog
from tools.chaos.faults import LONG_S, QUICK, Fault, faults_of
from tools.chaos.finder import Finder, finding_copy
from tools.chaos.invariants import (
    answer_violations,
    column_violations,
    label_violations,
    lost_and_doubled,
    sample_violations,
    verify_violations,
)
from tools.chaos.inverted_history import InvertedHistory
from tools.chaos.late_node import LateNode
from tools.chaos.plan import planned
from tools.chaos.settled_labels import ends_of_rows, read_settled
from tools.chaos.target import WORKERS, Target
from tools.demo import Board, Feed, Loop, Witness
from tools.demo.place import one_machine_settings
from tools.demo.poison import span_of
from tools.services import KafkaCluster, Service

__all__ = ["ChaosOptions", "Outcome", "run"]

_EXAMPLE = Path(__file__).parents[2] / "examples" / "kuairand"
_END_S_MAX = 300.0
# No fault begins in the last minute of the load.
_LAST_S, _LONG_S = 60.0, 600.0
_ROWS_PER_S_MAX = 400.0
_SETTINGS = (
    "up.restarts_max=1000",
    # The judge must not reject versions for the noise of small samples: quality is not tested here.
    "judge.scored_rows_min=1099511627776",
    "judge.norm_ratio_max=0",
    # Workers learn with the trainer. One of the three has nothing to learn at a time, and must follow all the same.
    f"up.workers={len(WORKERS)}",
    f"workers.slices={len(WORKERS)}",
)


@dataclass(frozen=True)
class ChaosOptions:
    """The options of a run.

    Attributes:
        seconds: Duration of the load.
        seed: Seed of the faults.
        recovery_s_max: Time within which the loop must recover from a fault.
        is_quick: Use only the faults in `QUICK`.
        is_once: End the load when each fault came once.
        faults_max: End the load after this number of faults; 0 for no limit.
        only: Use only faults whose name contains one of these texts; empty for all faults.
        is_finding: Whether the application retrieves, and its nodes are asked for items.
    """

    seconds: float
    seed: int
    recovery_s_max: float = 60.0
    is_quick: bool = False
    is_once: bool = False
    faults_max: int = 0
    only: tuple[str, ...] = ()
    is_finding: bool = False

    @property
    def away_s(self) -> float:
        """Time for which services are stopped: a minute in a long run."""
        return 60.0 if self.seconds >= _LONG_S else 20.0


@dataclass
class Outcome:
    """The result of a run.

    Attributes:
        recovery_s: Recovery times, by fault.
        violations: The violations.
        rows: Number of rows shown.
        requests: Number of requests.
        unanswered: Number of requests without an answer.
        versions: Number of published versions.
        compared: Number of replies that were sent again and compared, for each version checked.
        lost: Number of rows and labels that were shown and not learned.
        doubled: Number of rows and labels that were learned twice.
        slices: Number of slices that workers were seen to have learned.
        found: Number of lists of items that were held against the files of their version.
    """

    recovery_s: dict[str, list[float]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    rows: int = 0
    requests: int = 0
    unanswered: int = 0
    versions: int = 0
    compared: list[int] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    slices: int = 0
    found: int = 0

    def struck(self, text: str = "") -> int:
        """Return the number of faults whose name has a text."""
        return sum(len(recovery_s) for name, recovery_s in self.recovery_s.items() if text in name)


class _Beginning:
    """A history up to `until_ms`, or until `cut` is called."""

    events_count = None

    def __init__(self, history: History, until_ms: int) -> None:
        self._history, self._until_ms = history, until_ms

    def cut(self) -> None:
        """End the history before the next block."""
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


def _up(folder: AppFolder, changes: tuple[str, ...], place: Path) -> Loop:
    return Loop(folder, changes, place, 2, 2)


def run(
    options: ChaosOptions,
    place: Path,
    services: Mapping[str, Service | KafkaCluster],
    changes: tuple[str, ...],
    on_progress: Callable[[str], None],
    *,
    start: Callable[[AppFolder, tuple[str, ...], Path], Loop] = _up,
    faults_of: Callable[[Target, float], dict[str, Fault]] = faults_of,
) -> Outcome:
    """Run a chaos test.

    Args:
        options: Duration, seed and choice of faults.
        place: A folder for all files.
        services: The services that the loop runs on, by name; empty if it runs on files.
        changes: Settings for `--set` that name the services.
        on_progress: Called with each line of progress.
        start: Starts the loop.
        faults_of: Returns the faults by name, for a target and the seconds for which services are stopped.
    """
    outcome, answer_log = Outcome(), AnswerLog(load_app(_EXAMPLE).app)
    full_history = load_history(_EXAMPLE, {"delayed": "0.05"})
    begin_ms, end_ms = span_of(full_history)
    share = min(1.0, options.seconds * _ROWS_PER_S_MAX / 94_000)
    until_ms = begin_ms + round((end_ms - begin_ms) * share)
    speed = (until_ms - begin_ms) / 1_000 / options.seconds
    example = finding_copy(_EXAMPLE, place) if options.is_finding else _EXAMPLE
    listen = f'workers.listen=["unix:{place}/leader"]'
    changes = (*one_machine_settings(place, speed), *_SETTINGS, listen, *changes)
    folder = load_app(example, changes)
    board = Board(folder.app)
    with ExitStack() as stack:
        loop = stack.enter_context(closing(start(folder, changes, place)))
        loop.wait_up()
        on_progress("the loop is up")
        beginning = _Beginning(full_history, until_ms)
        history = InvertedHistory(beginning, folder.app)
        # The board gets the actions that the events report, also the inverted ones: they are what must be learned.
        witness = Witness(history, board.did)
        replay = Feed(folder, witness, loop.nodes, board, speed, token=loop.token, on_answer=answer_log)
        feed = stack.enter_context(closing(replay))
        target = Target(
            folder,
            changes,
            loop,
            feed,
            history=history,
            speed=speed,
            answer_log=answer_log,
            chance=random.Random(options.seed),
            services=services,
            place=place,
        )
        finder = (
            stack.enter_context(closing(Finder(loop, folder, answer_log, options.seed))) if options.is_finding else None
        )
        _inject_faults(target, faults_of(target, options.away_s), options, outcome, on_progress)
        beginning.cut()
        try:
            _check_invariants(target, board, outcome, on_progress)
            if finder is not None:
                finder.close()
                outcome.violations += finder.violations(loop.model.store)
                outcome.found = sum(map(len, finder.lists.values()))
        except StreamlearnError as error:
            outcome.violations.append(f"the end: {error.message}")
        outcome.slices = target.slices
        if not outcome.slices:
            outcome.violations.append("no worker learned a slice")
    outcome.rows, outcome.requests, outcome.unanswered = len(board), feed.requests, feed.unanswered
    return outcome


def _inject_faults(
    target: Target,
    faults: dict[str, Fault],
    options: ChaosOptions,
    outcome: Outcome,
    on_progress: Callable[[str], None],
) -> None:
    """Inject one fault after another while there is load, each when the loop has recovered from the last one."""
    ends_s = time.monotonic() + options.seconds - _LAST_S
    names = [name for name in faults if name in QUICK] if options.is_quick else list(faults)
    names = [name for name in names if not options.only or any(text in name for text in options.only)]
    injected_max = len(names) if options.is_once else options.faults_max
    target.wait_recovered(options.recovery_s_max)
    for quiet_s, name in planned(options.seed, names):
        injected = outcome.struck() + len(outcome.violations)
        if time.monotonic() + quiet_s + LONG_S.get(name, 0.0) >= ends_s or (injected_max and injected >= injected_max):
            return
        time.sleep(quiet_s)
        target.look_at_workers()
        on_progress(name)
        begun_s, unanswered = time.monotonic(), target.feed.unanswered
        try:
            faults[name](target)
            fault_end_s = time.monotonic()
            target.wait_recovered(options.recovery_s_max)
        except StreamlearnError as error:
            target.loop.check()
            outcome.violations.append(f"{name}, after {time.monotonic() - begun_s:.0f} s: {error.message}")
            on_progress(f"VIOLATION: {outcome.violations[-1]}")
            continue
        lost = target.feed.unanswered - unanswered
        if lost and "node" not in name:
            outcome.violations.append(f"{name}: {lost} requests had no answer, though the fault hit no node")
            on_progress(f"VIOLATION: {outcome.violations[-1]}")
        outcome.recovery_s.setdefault(name, []).append(time.monotonic() - fault_end_s)
        on_progress(f"  recovered after {outcome.recovery_s[name][-1]:.1f} s")


def _check_invariants(target: Target, board: Board, outcome: Outcome, on_progress: Callable[[str], None]) -> None:
    """Wait until everything is learned and served, then compare it with what was shown."""
    loop, feed = target.loop, target.feed
    loop.wait(lambda: feed.report is not None, "the feed to end", _END_S_MAX)
    on_progress("everything was shown; ingest ends, and training learns the rest")
    loop.wait(lambda: loop.has_ended("ingest"), "ingest to end", _END_S_MAX)
    ends = ends_of_rows(target.folder)
    loop.wait(lambda: loop.has_learned(target.newest, ends), "all samples to be learned", _END_S_MAX)
    last = target.newest
    loop.wait(lambda: target.active >= last.version, f"version {last.version} to be served", _END_S_MAX)
    loop.wait(lambda: all(version >= last.version for version in loop.served()), "nodes to follow", _END_S_MAX)
    outcome.versions = len(loop.versions())
    on_progress("everything is learned and served; comparing it with what was shown")
    labels = [label.name for label in target.folder.app.labels]
    settled = read_settled(target.folder)
    outcome.lost, outcome.doubled = lost_and_doubled(board, settled, target.newest.metrics, feed.unavailable)
    outcome.violations += sample_violations(board, labels, settled, target.newest.metrics, feed.unavailable)
    outcome.violations += column_violations(target)
    if loop.dead_letters:
        outcome.violations.append(f"{loop.dead_letters} dead letters")
    outcome.violations += [*verify_violations(target), *label_violations(target)]
    with closing(LateNode(target)) as late_node:
        outcome.violations += answer_violations(target, late_node, outcome.compared.append)
