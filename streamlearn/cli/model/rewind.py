"""`streamlearn rewind`: requests that training goes back to an older version and skips bad samples."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from streamlearn.cli.model.model_options import Model, ModelArgument, ReasonOption, author, open_model
from streamlearn.cli.model.place import Place, at_place
from streamlearn.cli.options import JsonOption
from streamlearn.cli.output.table import print_json
from streamlearn.cli.output.units import parse_time_ms
from streamlearn.errors import MoveRefused, UsageError

if TYPE_CHECKING:
    from streamlearn.versions.format.manifest import OriginSkip, Skip

__all__ = ["rewind", "skip_text"]

_HELP = "give TIME..TIME, such as 12:20..12:25, or TOPIC:PARTITION:OFFSET..OFFSET with --app or the topic's id"


@at_place
def rewind(
    place: Place,
    name: ModelArgument = None,
    to: Annotated[
        int | None, typer.Option(metavar="VERSION", min=1, help="Version to which training goes back.")
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RANGE",
            help="Samples to exclude from training, now and later: TIME..TIME by event time of impressions, or "
            "TOPIC:PARTITION:OFFSET..OFFSET by origin. The end of a range is not excluded.",
        ),
    ] = None,
    reason: ReasonOption = "",
    json: JsonOption = False,
) -> None:
    """Ask training to go back to an older version. At its next cut the trainer publishes it as a new version."""
    if to is None:
        message = "no version was given"
        raise UsageError(message, help="give --to VERSION; `streamlearn versions` lists them")
    from streamlearn.versions import Request, Requests

    model = open_model(name, place)
    target = model.one(to)
    if not target.is_whole:
        message = f"version {to} of {model.name!r} is incomplete: {target.lacks}"
        raise UsageError(message, help="choose a complete one; see `streamlearn versions`")
    _check_clean(model, to)
    now = datetime.now(UTC)
    skips = tuple(_skip(text, now, place) for text in skip or ())
    wanted = Request(to=target.ref, skips=skips, by=author(), reason=reason)
    request = Requests(model.store, model.name).ask(wanted, model.known())
    if json:
        print_json({"seq": request.seq, "to": to, "skips": [skip_text(skip) for skip in skips], "reason": reason})
        return
    typer.echo(f"request {request.seq}: training of {model.name} goes back to version {to} at its next cut")
    for text in map(skip_text, skips):
        typer.echo(f"skipped: {text}")


def _check_clean(model: Model, to: int) -> None:
    """Refuse a tainted target: its revert would be tainted too, and nodes would never serve it."""
    from streamlearn.versions.pointer.moves import taints_of

    pointer, known = model.pointer, model.known()
    tainted = taints_of(pointer, known)
    clean = [str(entry.version) for entry in known if entry.is_whole and entry.version not in tainted][-5:]
    if to < pointer.floor:
        message = f"version {to} of {model.name!r} is below the floor {pointer.floor}: its files may be deleted"
        raise MoveRefused(message, help=f"clean versions are {', '.join(clean)}")
    if to in tainted:
        message = f"version {to} of {model.name!r} is tainted, and the version made from it would be tainted too"
        help = (
            f"clean versions are {', '.join(clean) or 'none'}; or run `streamlearn promote MODEL {to} --accept` first"
        )
        raise MoveRefused(message, help=help)


def _skip(text: str, now: datetime, place: Place) -> Skip:
    from streamlearn.versions import TimeSkip

    begin, dots, end = text.partition("..")
    if not dots or not begin or not end:
        message = f"--skip {text!r} is not a valid range"
        raise UsageError(message, help=_HELP)
    topic = begin.rsplit(":", 2)
    if len(topic) == 3 and topic[1].isdigit() and topic[2].isdigit() and end.isdigit() and not topic[0].isdigit():
        return _origin_skip(place, topic[0], int(topic[1]), int(topic[2]), int(end))
    begin_ms, end_ms = parse_time_ms(begin, now), parse_time_ms(end, now)
    if begin_ms >= end_ms:
        message = f"--skip {text!r} ends before it begins"
        raise UsageError(message, help=_HELP)
    return TimeSkip(begin_ms=begin_ms, end_ms=end_ms)


def _origin_skip(place: Place, topic: str, partition: int, begin: int, end: int) -> OriginSkip:
    from streamlearn.versions.format.manifest import OriginSkip

    if begin >= end:
        message = f"offsets {begin}..{end} are not a valid range"
        raise UsageError(message, help=_HELP)
    if place.app is not None:
        from streamlearn.apps import TOPICS, load_app

        folder = load_app(place.app, place.set_ or ())
        names = {folder.topic_url(name): name for name in TOPICS} | {name: name for name in TOPICS}
        if topic in names:
            with folder.open_topic(names[topic]) as opened:
                topic = opened.topic_id
    return OriginSkip(topic_id=topic, partition=partition, begin=begin, end=end)


def skip_text(skip: Skip) -> str:
    """Describe the skipped samples."""
    from streamlearn.versions.format.manifest import OriginSkip

    if isinstance(skip, OriginSkip):
        return f"topic {skip.topic_id} partition {skip.partition} offsets {skip.begin}..{skip.end}"
    begin, end = (datetime.fromtimestamp(ms / 1000, UTC).isoformat() for ms in (skip.begin_ms, skip.end_ms))
    return f"impressions of {begin}..{end}"
