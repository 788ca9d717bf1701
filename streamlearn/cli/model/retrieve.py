"""`streamlearn retrieve`: the items that a node finds for a user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from streamlearn.cli.options import AppArgument, JsonOption, SetOption, TokenFileOption
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.errors import ServiceError, UsageError
from streamlearn.struct_decoder import from_json

if TYPE_CHECKING:
    from streamlearn.features import Dense, FeatureSpec, Slot

__all__ = ["ask_items", "retrieve"]

_ANSWER_BYTES_MAX = 64 << 20
_WAIT_S = 30.0


def retrieve(
    app: AppArgument,
    user: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FEATURE=VALUE",
            help="A feature of the user, as in user_id=42 or clicked=7,15; may be repeated for other features.",
        ),
    ] = None,
    k: Annotated[int, typer.Option("--k", metavar="N", min=1, help="How many items.")] = 10,
    rank: Annotated[
        bool, typer.Option("--rank", help="Rank more items than these by the model that scores, and show the best.")
    ] = False,
    version: Annotated[
        int | None, typer.Option(metavar="N", help="The version that answers; by default the promoted one.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="HTTP address of a node; by default front.http.")
    ] = None,
    token_file: TokenFileOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Find items for a user, as a running node of an application with retrieval does."""
    from streamlearn.access.token_file import read_token
    from streamlearn.apps import load_app

    folder = load_app(app, tuple(set_ or ()))
    towers = folder.app.towers
    if towers is None:
        message = f"application {folder.app.name!r} has no retrieval"
        raise UsageError(message, help="declare App(retrieval=...) in its app.py")
    features = folder.app.features if rank else towers
    given = [_feature(features, text) for text in user or ()]
    body: dict[str, Any] = {"user": dict(given), "k": k}
    names = [name for name, _ in given]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        message = f"--user gives {twice!r} twice"
        raise UsageError(message, help="give several values of one feature with commas, as in clicked=7,15")
    if version is not None:
        body["version"] = version
    token = None if token_file is None else read_token(token_file).decode("latin-1")
    path = "/recommend" if rank else "/retrieve"
    answer = ask_items(at or folder.settings.front.http, path, body, token)
    if json:
        print_json(answer)
    else:
        source = f", from a list of version {answer['source_version']}" if "source_version" in answer else ""
        typer.echo(f"version {answer['version']} of {answer['model']}{source}")
        items = answer["items"]
        print_table([{"id": item["id"], **item["scores"]} for item in items] if rank else items, whole=True)


def _feature(features: FeatureSpec, text: str) -> tuple[str, Any]:
    """Return the name and the value of a feature as a request has it."""
    from streamlearn.features import Slot

    columns: dict[str, Slot | Dense] = {slot.name: slot for slot in features.slots_of("user")}
    columns |= {dense.name: dense for dense in features.dense_of("user")}
    name, equals, value = text.partition("=")
    column = columns.get(name)
    if not equals or column is None:
        message = f"--user {text!r} is not FEATURE=VALUE of a user"
        raise UsageError(message, help=f"features of users are {', '.join(columns)}")
    try:
        if isinstance(column, Slot):
            parts: list[Any] = value.split(",") if value else []
            values = parts if column.value == "str" else [int(part) for part in parts]
            return name, values if column.multi else (value if column.value == "str" else int(value))
        numbers = [float(number) for number in value.split(",")]
        return name, numbers if column.width > 1 else numbers[0]
    except ValueError:
        many = "7,15" if isinstance(column, Slot) and column.multi else "42"
        message = f"--user {text!r} is not a number"
        raise UsageError(message, help=f"{name} takes numbers, such as {name}={many}") from None


def ask_items(address: str, path: str, body: dict[str, Any], token: str | None) -> Any:
    """Return the answer of the node at an HTTP address; raises ServiceError if there is none."""
    import http.client

    headers = {"content-type": "application/json"} | ({} if token is None else {"authorization": f"Bearer {token}"})
    connection = http.client.HTTPConnection(address, timeout=_WAIT_S)
    try:
        connection.request("POST", path, msgspec.json.encode(body), headers)
        response = connection.getresponse()
        answer = from_json(response.read(_ANSWER_BYTES_MAX), dict[str, Any])
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        message = f"no answer from {address}: {error or type(error).__name__}"
        help = "start a node with `streamlearn serve APP`, or give --at its HTTP address"
        raise ServiceError(message, help=help) from None
    finally:
        connection.close()
    if response.status != http.client.OK:
        message = f"{address} refuses: {answer['error']}"
        is_wrong = response.status < http.client.TOO_MANY_REQUESTS
        hint = "correct --user, --k, --version or --token-file"
        help = hint if is_wrong else "`curl ADDRESS/ready` says whether it is ready"
        raise ServiceError(message, help=help)
    return answer
