"""Arguments, options and signals that several verbs share."""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from streamlearn.errors import ConfigError, UsageError

__all__ = [
    "AcceptLostOption", "AppArgument", "AuthorityOption", "BeamOption", "HistoryOption", "JsonOption", "Place",
    "RegistryOption", "SetOption", "StoreOption", "TlsCertOption", "TlsKeyOption", "TokenFileOption", "at_place",
    "authority_file", "named_values", "one_of", "option_numbers", "stop_event", "tls_files",
]  # fmt: skip


def _complete_setting(incomplete: str) -> list[str]:
    """Return the settings whose names begin with a text, each with `=`."""
    from streamlearn.config import fields_of
    from streamlearn.settings import Settings

    return [f"{field.path}=" for field in fields_of(Settings) if field.path.startswith(incomplete)]


AppArgument: TypeAlias = Annotated[
    Path, typer.Argument(metavar="APP", help="The folder of an application, such as examples/kuairand.")
]
SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.NAME=VALUE",
        help="Override a setting of app.toml; may be repeated.",
        autocompletion=_complete_setting,
    ),
]
AcceptLostOption: TypeAlias = Annotated[
    bool, typer.Option("--accept-lost", help="Continue with the remaining records if needed ones were deleted.")
]
BeamOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="FLAG", help="Pass an option on to Beam, such as --beam=--job_name=x; may be repeated."),
]
HistoryOption: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="Pass an option to the history; may be repeated.")
]
TokenFileOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File with the token that the node expects.")
]
StoreOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="URL", help="URL of the store; overrides STREAMLEARN_STORE.")
]
RegistryOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="URL", help="URL of the registry, or `none`; overrides STREAMLEARN_REGISTRY.")
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
TlsCertOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="TLS certificate of the server, PEM.")
]
TlsKeyOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Private key of the certificate, PEM.")
]

AuthorityOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Certificate of the authority that signed those of nodes, PEM.")
]


@dataclass(frozen=True)
class Place:
    """The options with which verbs find a model's versions and nodes; registry `none` means that it has no nodes."""

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


def named_values(texts: Sequence[str] | None) -> dict[str, str]:
    """Parse the values of `--option NAME=VALUE`; raises ConfigError if a text does not have that form."""
    options: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            message = f"--option {text!r} is not NAME=VALUE"
            raise ConfigError(message, help="for example --option seed=7")
        options[name.strip()] = value.strip()
    return options


def option_numbers(option: str, text: str, form: str, example: str) -> list[float]:
    """Parse as many numbers, separated by commas, as the form of an option has; raises UsageError otherwise."""
    try:
        numbers = [float(number) for number in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != len(form.split(",")):
        message = f"{option} {text!r} is not {form}"
        raise UsageError(message, help=f"for example {option} {example}")
    return numbers


def one_of(names: Sequence[str]) -> Callable[[str | None], str | None]:
    """Return a callback that accepts only these values. Typer's own message for enums uses other words."""

    def check(value: str | None) -> str | None:
        if value is not None and value not in names:
            message = f"{value!r} is not one of {', '.join(names)}."
            raise typer.BadParameter(message)
        return value

    return check


def authority_file(ca: Path | None) -> Path | None:
    """Return the file given with --ca; raises UsageError if it has no certificate that can be used."""
    import ssl  # light commands do without

    if ca is not None:
        try:
            ssl.create_default_context(cafile=ca)
        except OSError as error:
            message = f"--ca {ca} cannot be used: {error}"
            help = "give the certificate of the authority that signed those of nodes, in PEM"
            raise UsageError(message, help=help) from None
    return ca


def tls_files(cert: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    """Return the files of certificate and key, or None without TLS; raises UsageError if only one is given."""
    if cert is not None and key is not None:
        return cert, key
    if cert is None and key is None:
        return None
    message = "give --tls-cert and --tls-key together"
    raise UsageError(message, help="add the missing one, or leave out both")


def stop_event() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set; further signals have no effect."""
    event = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: event.set())
    return event
