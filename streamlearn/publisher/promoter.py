"""Promoter: judges what is committed and promotes what passed. The pointer log and verdicts are its only state.

It reads them again each time, so an interruption makes no difference.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from streamlearn.clock import Clock
from streamlearn.errors import MoveRefused
from streamlearn.hints import Given, completed
from streamlearn.publisher.judge import Judge
from streamlearn.publisher.meters import Meters
from streamlearn.publisher.teller import Teller
from streamlearn.settings import PublisherSettings
from streamlearn.versions import History, Known, Pointer, PointerLog, Request, Requests, Store, Verdict, write_verdict
from streamlearn.versions.pointer.deletion import Deletion, Deletions
from streamlearn.versions.pointer.fence import Fence
from streamlearn.versions.pointer.moves import publish, taints_of

__all__ = ["Promoter", "Step"]

_BY = "publisher of run {run}"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    """The history, the pointer, the pending requests and all deletions after one round of judging and promoting.

    `said` is why the newest version is not served; empty when it is.
    """

    known: tuple[Known, ...]
    pointer: Pointer
    requests: tuple[Request, ...]
    deletions: tuple[Deletion, ...]
    said: str = ""


class _Served(Exception):
    """The version is already active; the pointer stays."""


class Promoter:
    """Judges and promotes the versions of a model.

    The settings say whether to promote, and what follows a rejection.
    """

    def __init__(
        self,
        store: Store,
        model: str,
        judge: Judge,
        teller: Teller,
        settings: PublisherSettings,
        *,
        meters: Meters,
        clock: Clock,
    ) -> None:
        self._store, self._judge, self._teller, self._settings = store, judge, teller, settings
        self._meters, self._given = meters, Given(model=model, options=("--store", store.url))
        self._history = History(store, model)
        self._log = PointerLog(store, model, clock=clock)
        self._requests = Requests(store, model, clock=clock)
        self._deletions = Deletions(store, model)
        self._fence = Fence(store, model, clock=clock)

    def active(self) -> int | None:
        """The version that is served."""
        return self._log.newest().active_version or None

    def requests(self, known: Sequence[Known] | None = None) -> tuple[Request, ...]:
        """The requests after the last one that the newest version records as obeyed."""
        return tuple(self._requests.waiting(self._history.read() if known is None else known))

    def deletions(self) -> tuple[Deletion, ...]:
        """All deletions of rows."""
        return self._deletions.all()

    def follow(self, run: int, *, can_score: bool) -> Step:
        """Judge every version without a verdict, oldest first, and promote the newest clean one on behalf of a run.

        `can_score` says whether the newest version's rows are there to score samples with.

        Raises:
            RunOver: A newer run has taken over.
            StoreError: The store refuses; try again later.
        """
        known = self._history.read()
        with self._meters.stage("judge"):
            known = self._judge_all(known, can_score=can_score)
        with self._meters.stage("promote"):
            reason, move = self._promote(known, run)
            if self._settings.on_reject == "rewind":
                self._ask_rewind(known, run)
            pointer = self._log.newest()
        self._teller.tell(known, move)
        return Step(known, pointer, self.requests(known), self.deletions(), reason)

    def _judge_all(self, known: tuple[Known, ...], *, can_score: bool) -> tuple[Known, ...]:
        unjudged = [at for at, version in enumerate(known) if version.outcome is None and version.is_whole]
        for at in unjudged:
            version = known[at]
            if (busy_with := self._judge.busy_with) is not None:
                _log.warning("version %d waits for the judge, which is still at version %d", version.version, busy_with)
                break
            # Only the newest version can be scored.
            verdict = self._verdict(known, at, can_score=can_score and at == len(known) - 1)
            written = write_verdict(self._store, self._history.folder(version.ref), verdict)
            self._meters.versions.labels(written.outcome).inc()
            if written.outcome == "rejected":
                reasons = "; ".join(f"{bad.check}: {bad.said}" for bad in written.findings if not bad.is_ok)
                _log.warning("version %d is rejected: %s", version.version, reasons)
            known = self._history.read()
        return known

    def _verdict(self, known: Sequence[Known], at: int, *, can_score: bool) -> Verdict:
        pointer = self._log.newest()
        number = pointer.active_version
        active = next((version for version in known[:at] if version.version == number), None)
        earlier = [old for old in known[:at] if old.version <= number and old.is_promotable(pointer.accepted)]
        case = self._judge.case(known[at], active=active, earlier=earlier, can_score=can_score)
        return self._judge.judge(case)

    def _promote(self, known: Sequence[Known], run: int) -> tuple[str, Pointer | None]:
        """Promote the newest clean version; returns why the newest version is not served, and the move if any."""
        if not self._settings.promote:
            return "promote is false", None
        pointer = self._log.newest()
        tainted = taints_of(pointer, known)
        clean = [old for old in known if old.version not in tainted and old.is_promotable(pointer.accepted)]
        if not clean:
            return "no version is clean", None
        newest, not_clean = clean[-1], f"version {known[-1].version} is tainted or rejected"
        if self._judge.settings.unscored == "hold" and pointer.active is not None:
            clean = [old for old in clean if not _is_held(old, pointer)]
            if not clean or clean[-1] is not newest:
                not_clean = f"version {newest.version} is unscored, and judge.unscored is hold"
                command = completed(f"`streamlearn promote MODEL {newest.version}`", self._given)
                _log.warning("%s: %s serves it", not_clean, command)
            if not clean:
                return not_clean, None
            newest = clean[-1]
        active = next((version for version in known if version.ref == pointer.active), None)
        if active is not None and newest.version <= active.version:
            return ("" if active.version == known[-1].version else not_clean), None
        self._fence.check(run)
        try:
            move = self._log.move(lambda now: _promoted(now, known, newest, run), by=_BY.format(run=run))
        except _Served:
            return "", None
        except MoveRefused as error:
            return error.message, None
        _log.info("version %d is served, by move %d", newest.version, move.seq)
        return ("" if newest is known[-1] else not_clean), move

    def _ask_rewind(self, known: Sequence[Known], run: int) -> None:
        """Request a rewind of training, once, when a rejection has tainted the newest version."""
        tainted = taints_of(self._log.newest(), known)
        began = tainted.get(known[-1].version) if known else None
        rejected = next((old for old in known if old.version == began and old.outcome == "rejected"), None)
        if rejected is None or self.requests(known):
            return
        # A rewind that training refused is not requested again.
        refused = {request.to for request in self._requests.refusals()}
        clean = [old for old in known if old.version not in tainted and old.is_whole and old.has_passed]
        clean = [version for version in clean if version.ref not in refused]
        if not clean:
            return
        reason = f"version {rejected.version} was rejected"
        made = self._requests.ask(Request(to=clean[-1].ref, by=_BY.format(run=run), reason=reason), known)
        _log.warning("training is asked to go back to version %d: %s (request %d)", made.to.version, reason, made.seq)


def _is_held(version: Known, pointer: Pointer) -> bool:
    """Whether a version waits for a comparison. A revert to what is served needs none."""
    is_served = version.content_of is not None and version.content_of == pointer.active
    return version.outcome == "unscored" and version.version not in pointer.accepted and not is_served


def _promoted(now: Pointer, known: Sequence[Known], newest: Known, run: int) -> Pointer:
    if now.active == newest.ref:
        raise _Served
    return publish(now, known, newest.version, run)
