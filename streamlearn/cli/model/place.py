"""Place: where a model's versions and nodes are, by the options that every verb on a model has. It opens nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from streamlearn.cli.options import SetOption

__all__ = ["Place", "at_place"]


@dataclass(frozen=True)
class Place:
    """Where a model is, from the command line.

    Attributes:
        app: The folder of an application.
        store: Where versions are.
        registry: Where nodes are; `none` if nodes do not exist.
        set_: Settings laid over those of app.toml.
    """

    app: Annotated[
        Path | None, typer.Option("--app", metavar="APP", help="Folder of an application; its app.toml is used.")
    ] = None
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="URL of the store; overrides STREAMLEARN_STORE.")
    ] = None
    registry: Annotated[
        str | None,
        typer.Option(
            "--registry", metavar="URL", help="URL of the registry, or `none`; overrides STREAMLEARN_REGISTRY."
        ),
    ] = None
    set_: SetOption = None


_PLACE = inspect.signature(Place, eval_str=True).parameters


def at_place(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb on a model: its first parameter, a `Place`, becomes the options of one, before its own `--json`."""
    signature = inspect.signature(verb, eval_str=True)
    _, *own = signature.parameters.values()
    at = next((number for number, one in enumerate(own) if one.name == "json"), len(own))
    parameters = [*own[:at], *_PLACE.values(), *own[at:]]

    @wraps(verb)
    def called(**given: Any) -> None:
        place = Place(**{name: given.pop(name) for name in _PLACE})
        verb(place, **given)

    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called
