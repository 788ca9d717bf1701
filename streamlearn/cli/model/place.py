"""Place: the options with which verbs find a model's versions and nodes. It opens nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from streamlearn.cli.options import RegistryOption, SetOption, StoreOption

__all__ = ["Place", "at_place"]


@dataclass(frozen=True)
class Place:
    """The location of a model; registry `none` means that it has no nodes."""

    app: Annotated[Path | None, typer.Option(metavar="APP", help="Folder of an application; its app.toml is used.")] = (
        None
    )
    store: StoreOption = None
    registry: RegistryOption = None
    set_: SetOption = None


_PLACE = inspect.signature(Place, eval_str=True).parameters


def at_place(verb: Callable[..., None]) -> Callable[..., None]:
    """Replace a verb's first parameter, a `Place`, by the options of `Place`; they stand before its `--json`."""
    signature = inspect.signature(verb, eval_str=True)
    _, *own = signature.parameters.values()
    at = next((number for number, parameter in enumerate(own) if parameter.name == "json"), len(own))
    parameters = [*own[:at], *_PLACE.values(), *own[at:]]

    @wraps(verb)
    def called(**given: Any) -> None:
        place = Place(**{name: given.pop(name) for name in _PLACE})
        verb(place, **given)

    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called
