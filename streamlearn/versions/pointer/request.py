"""Request: an operator's request to rewind training, in the store. The trainer obeys it at a cut, or refuses it."""

from __future__ import annotations

import contextlib
from collections import abc
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta, structs

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import FileTaken, MoveRefused, UsageError
from streamlearn.times import parse_time_ms
from streamlearn.versions.format.manifest import OriginSkip, Skip, TimeSkip
from streamlearn.versions.format.record import Record, VersionRef
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.pointer.model import Model
from streamlearn.versions.pointer.moves import Pointer, rewind_targets
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.layout import model_folder
from streamlearn.versions.store.sequence import Sequence

__all__ = ["OBEYED", "Refusal", "Request", "Requests", "ask_rewind", "parse_skip", "request_lines", "skip_text"]

OBEYED = "requests_obeyed"
"""The metric of a version with the number of the last request that training obeyed or refused."""

_HELP = "restore it from a copy; or remove it and ask again: until then training continues without it"
_REFUSAL_HELP = "restore it from a copy; or remove it: training then tries the request again"
_SKIP_HELP = "give TIME..TIME, such as 12:20..12:25, or TOPIC:PARTITION:OFFSET..OFFSET with --app or the topic's id"


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

    def ask(self, request: Request, known: abc.Sequence[Known] = ()) -> Request:
        """Write a request, and return it with its number and time. `known` are the versions of the model."""
        asked = structs.replace(request, wall_ms=max(0, self._clock.wall_ms()))
        # Numbers of obeyed and refused requests stay taken even if their files were removed.
        taken = max(_obeyed(known), *self._refusals.numbers(), 0)
        return self._records.add(lambda seq: structs.replace(asked, seq=seq), above=taken)

    def waiting(self, known: abc.Sequence[Known]) -> list[Request]:
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


def _obeyed(known: abc.Sequence[Known]) -> int:
    return int(known[-1].metrics.get(OBEYED, 0.0)) if known else 0


def ask_rewind(model: Model, to: int, skips: abc.Sequence[Skip], *, by: str, reason: str) -> Request:
    """Ask training to go back to a version, and not to learn the samples in `skips`.

    Raises:
        UsageError: The version does not exist or is incomplete.
        MoveRefused: The version is tainted, or its files may be deleted.
    """
    target = model.one(to)
    if not target.is_whole:
        message = f"version {to} of {model.name!r} is incomplete: {target.lacks}"
        raise UsageError(message, help="choose a complete one; see `streamlearn versions`")
    known = model.known()
    _check_clean(model.name, model.pointer, known, to)
    wanted = Request(to=target.ref, skips=tuple(skips), by=by, reason=reason)
    return Requests(model.store, model.name).ask(wanted, known)


def _check_clean(name: str, pointer: Pointer, known: abc.Sequence[Known], to: int) -> None:
    """Refuse a tainted target: its revert would be tainted too, and nodes would never serve it."""
    targets = rewind_targets(pointer, known)
    if to in targets:
        return
    clean = ", ".join(str(version) for version in targets[-5:]) or "none"
    if to < pointer.floor:
        message = f"version {to} of {name!r} is below the floor {pointer.floor}: its files may be deleted"
        raise MoveRefused(message, help=f"clean versions are {clean}")
    message = f"version {to} of {name!r} is tainted, and the version made from it would be tainted too"
    help = f"clean versions are {clean}; or run `streamlearn promote MODEL {to} --accept` first"
    raise MoveRefused(message, help=help)


def parse_skip(text: str, now: datetime, topic_id: abc.Callable[[str], str] = str) -> Skip:
    """Parse a range of samples; `topic_id` returns the id of a topic that is named by a word.

    Raises:
        UsageError: It is not a range.
    """
    begin, dots, end = text.partition("..")
    if not dots or not begin or not end:
        message = f"--skip {text!r} is not a valid range"
        raise UsageError(message, help=_SKIP_HELP)
    topic = begin.rsplit(":", 2)
    if len(topic) == 3 and topic[1].isdigit() and topic[2].isdigit() and end.isdigit() and not topic[0].isdigit():
        first, last = int(topic[2]), int(end)
        if first >= last:
            message = f"offsets {first}..{last} are not a valid range"
            raise UsageError(message, help=_SKIP_HELP)
        return OriginSkip(topic_id=topic_id(topic[0]), partition=int(topic[1]), begin=first, end=last)
    begin_ms, end_ms = parse_time_ms(begin, now), parse_time_ms(end, now)
    if begin_ms >= end_ms:
        message = f"--skip {text!r} ends before it begins: it is {_time(begin_ms)} to {_time(end_ms)}"
        help = "a time without a date is the last one before now: give an end that is still to come with its date"
        raise UsageError(message, help=help)
    return TimeSkip(begin_ms=begin_ms, end_ms=end_ms)


def request_lines(name: str, request: Request) -> list[str]:
    """Describe a request that was written."""
    first = f"request {request.seq}: training of {name} goes back to version {request.to.version} at its next cut"
    return [first, *(f"skipped: {skip_text(skip)}" for skip in request.skips)]


def skip_text(skip: Skip) -> str:
    """Describe the skipped samples."""
    if isinstance(skip, OriginSkip):
        return f"topic {skip.topic_id} partition {skip.partition} offsets {skip.begin}..{skip.end}"
    end = _time(skip.end_ms)
    return f"impressions before {end}" if skip.begin_ms < 0 else f"impressions of {_time(skip.begin_ms)}..{end}"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()
