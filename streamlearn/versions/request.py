"""Request: what an operator asks of training, in the store; the trainer obeys at its next cut."""

from __future__ import annotations

from collections.abc import Sequence as Versions
from typing import Annotated

from msgspec import Meta, structs

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import FileTaken
from streamlearn.versions.known import Known
from streamlearn.versions.layout import model_folder
from streamlearn.versions.manifest import Skip
from streamlearn.versions.record import Record, VersionRef
from streamlearn.versions.sequence import Sequence
from streamlearn.versions.store import Store

__all__ = ["OBEYED", "Request", "Requests"]

OBEYED = "requests_obeyed"
"""The metric of a version that says up to which request training had obeyed."""

_HELP = "restore it from a copy; or remove it, and ask again: training goes on without it"


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


class Requests:
    """The requests of a model.

    A trainer obeys those after the number its newest version says was obeyed (the metric `requests_obeyed`), in order.

    Args:
        store: Where its versions are.
        model: Which model.
        clock: When a request is made.
    """

    def __init__(self, store: Store, model: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._records = Sequence(store, model_folder(model, "requests"), Request, help=_HELP)
        self._clock = clock

    def ask(self, request: Request) -> Request:
        """Make a request; gives it with its number and time."""
        while True:
            newest = self._records.newest()
            seq = 1 if newest is None else newest[0] + 1
            made = structs.replace(request, seq=seq, wall_ms=max(0, self._clock.wall_ms()))
            try:
                self._records.append(seq, made)
            except FileTaken:
                continue
            return made

    def waiting(self, known: Versions[Known]) -> list[Request]:
        """The requests that the newest version of a history, oldest first, does not say were obeyed, in order."""
        return self.after(int(known[-1].metrics.get(OBEYED, 0.0)) if known else 0)

    def after(self, seq: int) -> list[Request]:
        """The requests after a number, in order.

        Raises:
            VersionDefect: One is damaged.
        """
        return [self._records.read(number) for number in self._records.numbers() if number > seq]
