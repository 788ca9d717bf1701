"""Following: what is committed is judged, and what passed is promoted. Pointer log and verdicts are its only state.

It begins anew from them each time, so that it makes no difference whether it was interrupted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from streamlearn.clock import Clock
from streamlearn.errors import MoveRefused
from streamlearn.publisher.judge import Judge
from streamlearn.publisher.meters import Meters
from streamlearn.publisher.teller import Teller
from streamlearn.settings import PublisherSettings
from streamlearn.versions import History, Known, Pointer, PointerLog, Request, Requests, Store, Verdict, write_verdict
from streamlearn.versions.pointer.fence import Fence
from streamlearn.versions.pointer.moves import publish, taints_of

__all__ = ["Following", "Step"]

_BY = "publisher of run {run}"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    """What following has come to.

    Attributes:
        known: The history.
        pointer: Where it stands.
        requests: Requests that training has not obeyed.
        said: Why the newest version is not served; empty when it is.
    """

    known: tuple[Known, ...]
    pointer: Pointer
    requests: tuple[Request, ...]
    said: str = ""


class _Served(Exception):
    """The version is the active one already; nothing is to be moved."""


class Following:
    """Judges and promotes the versions of a model.

    Args:
        store: Where they are.
        model: Whose they are.
        judge: Who judges.
        teller: Who tells the registry.
        settings: What is promoted, and what follows a rejection.
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
        self._meters = meters
        self._history = History(store, model)
        self._log = PointerLog(store, model, clock=clock)
        self._requests = Requests(store, model, clock=clock)
        self._fence = Fence(store, model, clock=clock)

    def active(self) -> int | None:
        """The version that is served."""
        active = self._log.newest().active
        return None if active is None else active.version

    def requests(self, known: Sequence[Known] | None = None) -> tuple[Request, ...]:
        """The requests after the last one that the newest version says was obeyed."""
        return tuple(self._requests.waiting(self._history.read() if known is None else known))

    def follow(self, run: int, *, can_score: bool) -> Step:
        """Judge every version that has no verdict, oldest first, and promote the newest that is clean.

        Args:
            run: On behalf of which run.
            can_score: Whether the newest version's rows are there to score samples with.

        Raises:
            RunOver: A newer run has taken over.
            StoreError: The store refuses; it can be called again.
        """
        known = self._history.read()
        with self._meters.stage("judge"):
            known = self._judged(known, can_score=can_score)
        with self._meters.stage("promote"):
            said, moved = self._promote(known, run)
            if self._settings.on_reject == "rewind":
                self._ask_rewind(known, run)
            pointer = self._log.newest()
        self._teller.tell(known, moved)
        return Step(known, pointer, self.requests(known), said)

    def _judged(self, known: tuple[Known, ...], *, can_score: bool) -> tuple[Known, ...]:
        unjudged = [at for at, one in enumerate(known) if one.outcome is None and one.is_whole]
        for at in unjudged:
            one = known[at]
            # A verdict has to be of one who may still give it; what is scored is the newest alone.
            if (busy_with := self._judge.busy_with) is not None:
                _log.warning("version %d waits for the judge, which is still at version %d", one.version, busy_with)
                break
            verdict = self._verdict(known, at, can_score=can_score and at == len(known) - 1)
            written = write_verdict(self._store, self._history.folder(one.ref), verdict)
            self._meters.versions.labels(written.outcome).inc()
            if written.outcome == "rejected":
                said = "; ".join(f"{one.check}: {one.said}" for one in written.findings if not one.is_ok)
                _log.warning("version %d is rejected: %s", one.version, said)
            known = self._history.read()
        return known

    def _verdict(self, known: Sequence[Known], at: int, *, can_score: bool) -> Verdict:
        pointer = self._log.newest()
        number = 0 if pointer.active is None else pointer.active.version
        active = next((one for one in known[:at] if one.version == number), None)
        earlier = [one for one in known[:at] if one.version <= number and one.is_promotable(pointer.accepted)]
        case = self._judge.case(known[at], active=active, earlier=earlier, can_score=can_score)
        return self._judge.judge(case)

    def _promote(self, known: Sequence[Known], run: int) -> tuple[str, Pointer | None]:
        """Serve the newest clean version; gives why not, and the move."""
        if not self._settings.promote:
            return "promote is false", None
        pointer = self._log.newest()
        tainted = taints_of(pointer, known)
        clean = [one for one in known if one.version not in tainted and one.is_promotable(pointer.accepted)]
        if not clean:
            return "no version is clean", None
        newest = clean[-1]
        active = next((one for one in known if one.ref == pointer.active), None)
        if active is not None and newest.version <= active.version:
            is_active = active.version == known[-1].version
            return ("" if is_active else f"version {known[-1].version} is tainted or rejected"), None
        self._fence.check(run)
        try:
            moved = self._log.move(lambda now: _followed(now, known, newest, run), by=_BY.format(run=run))
        except _Served:
            return "", None
        except MoveRefused as error:
            return error.message, None
        _log.info("version %d is served, by move %d", newest.version, moved.seq)
        return ("" if newest is known[-1] else f"version {known[-1].version} is tainted or rejected"), moved

    def _ask_rewind(self, known: Sequence[Known], run: int) -> None:
        """Ask training to go back when a rejection has tainted the newest version, once."""
        tainted = taints_of(self._log.newest(), known)
        began = tainted.get(known[-1].version) if known else None
        rejected = next((one for one in known if one.version == began and one.outcome == "rejected"), None)
        if rejected is None or self.requests(known):
            return
        # What training could not go back to once, it is not asked for again.
        refused = {one.to for one in self._requests.refusals()}
        clean = [one for one in known if one.version not in tainted and one.is_whole and one.outcome == "passed"]
        clean = [one for one in clean if one.ref not in refused]
        if not clean:
            return
        reason = f"version {rejected.version} was rejected"
        made = self._requests.ask(Request(to=clean[-1].ref, by=_BY.format(run=run), reason=reason))
        _log.warning("training is asked to go back to version %d: %s (request %d)", made.to.version, reason, made.seq)


def _followed(now: Pointer, known: Sequence[Known], newest: Known, run: int) -> Pointer:
    if now.active == newest.ref:
        raise _Served
    return publish(now, known, newest.version, run)
