"""Request: what an operator asks of training, in the store; the trainer obeys at its next cut, or refuses."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence as Versions
from typing import Annotated

from msgspec import Meta, structs

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import FileTaken
from streamlearn.versions.format.manifest import Skip
from streamlearn.versions.format.record import Record, VersionRef
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.layout import model_folder
from streamlearn.versions.store.sequence import Sequence

__all__ = ["OBEYED", "Refusal", "Request", "Requests"]

OBEYED = "requests_obeyed"
"""The metric of a version that says up to which request training had obeyed or refused."""

_HELP = "restore it from a copy; or remove it and ask again: until then training continues without it"
_REFUSAL_HELP = "restore it from a copy; or remove it: training then tries the request again"


class Request(Record, frozen=True, kw_only=True):
    """That training is to go back to an older version, and what it is not to learn from.

    Attributes:
        seq: Its place among the requests of a model.
        to: The version whose content the next one is to have.
        skips: What is not learned from, from then on.
        by: Who asks.
        reason: Why.
        wall_ms: When.
    """

    seq: Annotated[int, Meta(ge=1, le=10**12 - 1)] = 1
    to: VersionRef
    skips: Annotated[tuple[Skip, ...], Meta(max_length=10_000)] = ()
    by: Annotated[str, Meta(max_length=200)] = ""
    reason: Annotated[str, Meta(max_length=2_000)] = ""
    wall_ms: Annotated[int, Meta(ge=0, le=1 << 62)] = 0


class Refusal(Record, frozen=True, kw_only=True):
    """That training could not obey a request, and went on without it.

    Attributes:
        seq: The request's.
        to: The version that was asked for.
        by: Who asked.
        reason: Why training could not go back to it.
        wall_ms: When it tried.
    """

    seq: Annotated[int, Meta(ge=1, le=10**12 - 1)]
    to: VersionRef
    by: Annotated[str, Meta(max_length=200)] = ""
    reason: Annotated[str, Meta(max_length=2_000)] = ""
    wall_ms: Annotated[int, Meta(ge=0, le=1 << 62)] = 0


class Requests:
    """The requests of a model, and which of them training refused.

    A trainer obeys those after the number its newest version says was obeyed (the metric `requests_obeyed`), in order.

    Args:
        store: Where its versions are.
        model: Which model.
        clock: When a request is made.
    """

    def __init__(self, store: Store, model: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._records = Sequence(store, model_folder(model, "requests"), Request, help=_HELP)
        self._refusals = Sequence(store, model_folder(model, "refusals"), Refusal, help=_REFUSAL_HELP)
        self._clock = clock

    def ask(self, request: Request) -> Request:
        """Make a request; gives it with its number and time."""
        while True:
            newest = self._records.newest()
            # A refused request whose file somebody removed keeps its number.
            seq = 1 + max((0 if newest is None else newest[0], *self._refusals.numbers()))
            made = structs.replace(request, seq=seq, wall_ms=max(0, self._clock.wall_ms()))
            try:
                self._records.append(seq, made)
            except FileTaken:
                continue
            return made

    def waiting(self, known: Versions[Known]) -> list[Request]:
        """The requests that the newest version of a history, oldest first, does not say were obeyed, in order.

        Those that training refused are left out.
        """
        asked = self.after(int(known[-1].metrics.get(OBEYED, 0.0)) if known else 0)
        refused = set(self._refusals.numbers()) if asked else set()
        return [one for one in asked if one.seq not in refused]

    def refuse(self, request: Request, reason: str) -> None:
        """Record that training cannot obey a request, and why; the first record of a request stays."""
        wall_ms = max(0, self._clock.wall_ms())
        refusal = Refusal(seq=request.seq, to=request.to, by=request.by, reason=reason[:2_000], wall_ms=wall_ms)
        with contextlib.suppress(FileTaken):
            self._refusals.append(request.seq, refusal)

    def refusals(self) -> list[Refusal]:
        """What training refused, in order."""
        return [self._refusals.read(number) for number in self._refusals.numbers()]

    def refused_last(self) -> Refusal | None:
        """The refusal of the newest request; None where training obeyed it, or has not seen it."""
        newest = max(self._records.numbers(), default=0)
        return self._refusals.read(newest) if newest in self._refusals.numbers() else None

    def after(self, seq: int) -> list[Request]:
        """The requests after a number, in order.

        Raises:
            VersionDefect: One is damaged.
        """
        return [self._records.read(number) for number in self._records.numbers() if number > seq]
