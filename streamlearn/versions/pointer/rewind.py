"""Rewind: the checks and the words of a request to training, for the command and the console."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from streamlearn.errors import MoveRefused, UsageError
from streamlearn.times import parse_time_ms
from streamlearn.versions.format.manifest import OriginSkip, Skip, TimeSkip
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.pointer.model import Model
from streamlearn.versions.pointer.moves import Pointer, rewind_targets
from streamlearn.versions.pointer.request import Request, Requests

__all__ = ["ask_rewind", "parse_skip", "request_lines", "skip_text"]

_HELP = "give TIME..TIME, such as 12:20..12:25, or TOPIC:PARTITION:OFFSET..OFFSET with --app or the topic's id"


def ask_rewind(model: Model, to: int, skips: Sequence[Skip], *, by: str, reason: str) -> Request:
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


def _check_clean(name: str, pointer: Pointer, known: Sequence[Known], to: int) -> None:
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


def parse_skip(text: str, now: datetime, topic_id: Callable[[str], str] = str) -> Skip:
    """Parse a range of samples; `topic_id` returns the id of a topic that is named by a word.

    Raises:
        UsageError: It is not a range.
    """
    begin, dots, end = text.partition("..")
    if not dots or not begin or not end:
        message = f"--skip {text!r} is not a valid range"
        raise UsageError(message, help=_HELP)
    topic = begin.rsplit(":", 2)
    if len(topic) == 3 and topic[1].isdigit() and topic[2].isdigit() and end.isdigit() and not topic[0].isdigit():
        first, last = int(topic[2]), int(end)
        if first >= last:
            message = f"offsets {first}..{last} are not a valid range"
            raise UsageError(message, help=_HELP)
        return OriginSkip(topic_id=topic_id(topic[0]), partition=int(topic[1]), begin=first, end=last)
    begin_ms, end_ms = parse_time_ms(begin, now), parse_time_ms(end, now)
    if begin_ms >= end_ms:
        message = f"--skip {text!r} ends before it begins"
        raise UsageError(message, help=_HELP)
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
