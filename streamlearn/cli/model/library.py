"""`streamlearn library`: the items among which an application finds candidates, as a version has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.options import AppArgument, JsonOption, SetOption
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.errors import UsageError

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder
    from streamlearn.library.library import Library
    from streamlearn.versions import Chain

__all__ = ["library"]


def library(
    app: AppArgument,
    item: Annotated[str | None, typer.Option(metavar="ID", help="Show what is known of this item.")] = None,
    version: Annotated[
        int | None, typer.Option(min=1, metavar="VERSION", help="The version to look into.", show_default="the newest")
    ] = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Show APP's library of items in a version: its size and its newest change, or one item."""
    from streamlearn.apps import load_app
    from streamlearn.library.library import Library
    from streamlearn.versions import Chain, open_store

    folder = load_app(app, set_ or ())
    if folder.app.retrieval is None:
        message = f"app {folder.app.name!r} has no library of items"
        raise UsageError(message, help="declare retrieval=Retrieval(...) in its app.py")
    key = None if item is None else _key(folder, item)
    store = open_store(folder.store_url, settings=folder.settings.versions)
    chain = Chain.find(store, folder.app.name, version)
    items = Library(folder.app)
    items.restore(chain)
    facts: dict[str, Any] = {"version": chain.version}
    facts |= _of_all(items) if key is None else {"item": item} | _of_item(items, chain, key)
    if json:
        print_json(facts)
        return
    features = facts.pop("features", {})
    rows = [{"what": name.replace("_", " "), "value": _text(value)} for name, value in facts.items()]
    rows += [{"what": f"feature {name}", "value": _text(value)} for name, value in features.items()]
    print_table(rows, whole=True)


def _key(folder: AppFolder, item: str) -> int:
    from streamlearn.features import keys_of

    slot = folder.app.features.slot(folder.app.features.item_id)
    try:
        return int(keys_of(slot, [item] if slot.value == "str" else [int(item)])[0])
    except (ValueError, OverflowError):
        message = f"--item {item!r} is not a whole number of 64 bits, as {slot.name} is"
        raise UsageError(message, help="give the id as events have it") from None


def _of_all(items: Library) -> dict[str, Any]:
    from streamlearn.times import time_text

    counts: dict[str, Any] = items.counts()
    newest_ms = counts.pop("newest_ms", None)
    return counts | {"newest_change": None if newest_ms is None else time_text(newest_ms)}


def _of_item(items: Library, chain: Chain, key: int) -> dict[str, Any]:
    """Return what is known of an item."""
    from streamlearn.library.items import WRITTEN
    from streamlearn.times import time_text
    from streamlearn.versions.format.library_files import NEVER_MS

    state = items.state(key)
    if state is None:
        return {"is_in_library": False}
    since_ms, removed_ms = (None if state[name] == NEVER_MS else state[name] for name in ("event_ms", "removed_ms"))
    found = {
        "is_in_library": state["is_present"],
        "source": None if since_ms is None else "topic of items" if state["origin"] >= int(WRITTEN) else "shown",
        "since": None if since_ms is None else time_text(since_ms),
        "removed": None if removed_ms is None else time_text(removed_ms),
        "first_version": _first(chain, key),
    }
    if since_ms is None:
        return found
    slots, dense = state["features"].slots, state["features"].dense
    features: dict[str, Any] = {name: [f"{key:016x}" for key in slot.keys.tolist()] for name, slot in slots.items()}
    return found | {"features": features | {name: numbers[0].tolist() for name, numbers in dense.items()}}


def _first(chain: Chain, key: int) -> str | None:
    """Return the version from which on a key was in the files of a chain; a base may hold it from earlier ones."""
    from streamlearn.versions import load_tensors

    first = None
    for link in chain.links:
        tensors = load_tensors(chain.store, link, "library")
        if key in tensors["key"]:
            is_whole = link.manifest.kind != "delta" and link.manifest.parent is not None
            first = first or f"{link.manifest.version}{' or before' if is_whole else ''}"
        elif key in tensors["gone"] or link.manifest.kind != "delta":
            first = None
    return first


def _text(value: Any) -> str:
    return "-" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
