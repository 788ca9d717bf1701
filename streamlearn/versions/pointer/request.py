"""Request: an operator's request to training, in the store. The trainer obeys it at its next cut, or refuses it."""

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
"""The metric of a version with the number of the last request that training obeyed or refused."""

_HELP = "restore it from a copy; or remove it and ask again: until then training continues without it"
_REFUSAL_HELP = "restore it from a copy; or remove it: training then tries the request again"


class Request(Record, frozen=True, kw_only=True):
    """A request to rewind training.

    Attributes:
        seq: Its number among the requests of a model.
        to: The version whose content the next one must have.
        skips: Samples not to learn from then on.
    """

    seq: Annotated[int, Meta(ge=1, le=10**12 - 1)] = 1
    to: VersionRef
    skips: Annotated[tuple[Skip, ...], Meta(max_length=10_000)] = ()
    by: Annotated[str, Meta(max_length=200)] = ""
    reason: Annotated[str, Meta(max_length=2_000)] = ""
    wall_ms: Annotated[int, Meta(ge=0, le=1 << 62)] = 0


class Refusal(Record, frozen=True, kw_only=True):
    """A request (`seq`, `to`, `by`) that training could not obey; `reason` says why, and training goes on."""

    seq: Annotated[int, Meta(ge=1, le=10**12 - 1)]
    to: VersionRef
    by: Annotated[str, Meta(max_length=200)] = ""
    reason: Annotated[str, Meta(max_length=2_000)] = ""
    wall_ms: Annotated[int, Meta(ge=0, le=1 << 62)] = 0


class Requests:
    """The requests of a model, and training's refusals.

    A trainer obeys, in order, the requests after the number in its newest version (the metric `requests_obeyed`).
    """

    def __init__(self, store: Store, model: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._records = Sequence(store, model_folder(model, "requests"), Request, help=_HELP)
        self._refusals = Sequence(store, model_folder(model, "refusals"), Refusal, help=_REFUSAL_HELP)
        self._clock = clock

    def ask(self, request: Request, known: Versions[Known] = ()) -> Request:
        """Write a request, and return it with its number and time. `known` are the versions of the model."""
        asked = structs.replace(request, wall_ms=max(0, self._clock.wall_ms()))
        # Numbers of obeyed and refused requests stay taken even if their files were removed.
        taken = max(_obeyed(known), *self._refusals.numbers(), 0)
        return self._records.add(lambda seq: structs.replace(asked, seq=seq), above=taken)

    def waiting(self, known: Versions[Known]) -> list[Request]:
        """Return, in order, the requests that training has neither obeyed, by the newest version, nor refused."""
        requests = self.after(_obeyed(known))
        refused = set(self._refusals.numbers()) if requests else set()
        return [request for request in requests if request.seq not in refused]

    def refuse(self, request: Request, reason: str) -> None:
        """Record that training cannot obey a request, and why; the first refusal of a request stays."""
        wall_ms = max(0, self._clock.wall_ms())
        refusal = Refusal(seq=request.seq, to=request.to, by=request.by, reason=reason[:2_000], wall_ms=wall_ms)
        with contextlib.suppress(FileTaken):
            self._refusals.append(request.seq, refusal)

    def refusals(self) -> list[Refusal]:
        """Return all refusals, in order."""
        return [self._refusals.read(number) for number in self._refusals.numbers()]

    def refused_last(self) -> Refusal | None:
        """Return the refusal of the newest request; None if training obeyed it or has not seen it."""
        newest = max(self._records.numbers(), default=0)
        return self._refusals.read(newest) if newest in self._refusals.numbers() else None

    def after(self, seq: int) -> list[Request]:
        """Return the requests after a number, in order; raises `VersionDefect` if one is damaged."""
        return [self._records.read(number) for number in self._records.numbers() if number > seq]


def _obeyed(known: Versions[Known]) -> int:
    return int(known[-1].metrics.get(OBEYED, 0.0)) if known else 0
