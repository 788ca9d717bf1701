"""`streamlearn rewind`: requests that training goes back to an older version and skips bad samples."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import typer

from streamlearn.cli.model.model_options import ModelArgument, ReasonOption, author, complete_version, open_model
from streamlearn.cli.options import JsonOption, Place, at_place
from streamlearn.cli.output.table import print_json
from streamlearn.errors import UsageError

__all__ = ["rewind"]


@at_place
def rewind(
    place: Place,
    name: ModelArgument = None,
    to: Annotated[
        int | None,
        typer.Option(
            metavar="VERSION",
            min=1,
            help="Version to which training goes back.",
            autocompletion=complete_version,
        ),
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
    from streamlearn.versions.pointer.request import ask_rewind, parse_skip, request_lines, skip_text

    model, now = open_model(name, place), datetime.now(UTC)
    skips = [parse_skip(text, now, partial(_topic_id, place)) for text in skip or ()]
    request = ask_rewind(model, to, skips, by=author(), reason=reason)
    if json:
        texts = [skip_text(skip) for skip in request.skips]
        print_json({"seq": request.seq, "to": to, "skips": texts, "reason": reason})
        return
    for line in request_lines(model.name, request):
        typer.echo(line)


def _topic_id(place: Place, topic: str) -> str:
    """Return the id of a topic of the application; another word is an id already."""
    if place.app is not None:
        from streamlearn.apps import load_app

        folder = load_app(place.app, place.set_ or ())
        names = {folder.topic_url(name): name for name in folder.topics} | {name: name for name in folder.topics}
        if topic in names:
            with folder.open_topic(names[topic]) as opened:
                return opened.topic_id
    return topic
