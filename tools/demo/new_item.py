"""NewItem: an item that is written while nodes answer, how soon they find it, and how a rollback takes it back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamlearn.apps import App, AppFolder
from streamlearn.events import Producer
from streamlearn.events.columns import ids_of
from streamlearn.events.event import Columns
from streamlearn.load.replayed_requests import of_history
from streamlearn.replay import History
from tools.demo.found_items import FoundItems, VersionItems, find, user_of
from tools.demo.loop import Loop

__all__ = ["Item", "NewItem", "items_of", "see_new_item", "write_items"]

Item = tuple[Any, Mapping[str, Any]]
"""An id, and the other features by name."""
_FOUND_S_MAX, _USERS = 60.0, 3


@dataclass(frozen=True)
class NewItem:
    """What was seen of an item that nodes did not know.

    Attributes:
        found_s: Seconds from its record until all nodes found it.
        back_ms: Milliseconds that each node took to roll back to the version before it.
        lists: Lists that were compared with the files of their version.
        wrong: What was wrong with one of these lists; empty if nothing was.
        left: What nodes found after the rollback that the version before does not have.
    """

    found_s: float
    back_ms: tuple[float, ...]
    lists: int
    wrong: str
    left: str


def items_of(history: History, app: App, count: int) -> list[Item]:
    """Return the first distinct items that a history shows."""
    found: dict[Any, Mapping[str, Any]] = {}
    for part in of_history(history):
        for item, features in _shown(part, app):
            found.setdefault(item, features)
        if len(found) >= count:
            break
    return list(found.items())[:count]


def write_items(folder: AppFolder, items: Sequence[Item], event_time_ms: int) -> None:
    """Write items to their topic."""
    with Producer(folder) as producer:
        for item, features in items:
            producer.item(item, event_time_ms, features)


def see_new_item(loop: Loop, items: Sequence[Item], event_time_ms: int) -> NewItem:
    """Write an item that is like the first of those that nodes find, wait until all find it, and roll back."""
    app, active = loop.folder.app, loop.model.pointer.active
    assert active is not None
    is_text, (like, features) = app.features.slot(app.features.item_id).value == "str", items[0]
    new = f"{like} new" if is_text else max(item for item, _ in items) + 1
    k, users = len(items) + 1, [user_of(app, at + 1, [new, like][:at]) for at in range(_USERS)]
    seen: list[tuple[FoundItems, Mapping[str, Any]]] = []

    def asked() -> list[FoundItems]:
        lists = [(find(address, user, k, loop.token), user) for address in loop.http for user in users]
        seen.extend(lists)
        return [found for found, _ in lists]

    asked()
    begin_s = time.perf_counter()
    write_items(loop.folder, [(new, features)], event_time_ms)
    loop.wait(
        lambda: all(new in find(address, users[0], k, loop.token).ids for address in loop.http),
        "all nodes to find a new item", _FOUND_S_MAX,
    )  # fmt: skip
    found_s = time.perf_counter() - begin_s
    asked()
    rolled = loop.verb("rollback", "--to", str(active.version), "--reason", "an item that must not be shown")
    after = asked()
    truth = {version: VersionItems(app, loop.model.store, version) for version in {found.version for found, _ in seen}}
    left = [found for found in after if found.version != active.version or new in found.ids]
    return NewItem(
        found_s=found_s,
        back_ms=tuple(node["ms"] for node in rolled["acted"]),
        lists=len(seen),
        wrong="; ".join(filter(None, (truth[found.version].wrong(found, user, k) for found, user in seen)))[:500],
        left=f"{len(left)} lists of version {left[0].version}" if left else "",
    )


def _shown(part: Columns, app: App) -> Iterator[Item]:
    """Yield the items of impressions, with the features that describe them by themselves."""
    slots, dense = app.features.of_library
    name = f"items.{app.features.item_id}"
    ids, columns = ids_of(part, name), dict[str, list[Any]]()
    for path in (f"items.{name}" for name in (*(slot.name for slot in slots), *(column.name for column in dense))):
        for key in (path, f"{path}_weights"):
            if key in part:
                columns[key.removeprefix("items.")] = _values(part, key)
    for at, item in enumerate(ids):
        yield item, {key: values[at] for key, values in columns.items()}


def _values(part: Columns, path: str) -> list[Any]:
    """Return one value for each item: a number, a text, or a list of them."""
    values, ends = ids_of(part, path), part.get(f"{path}[]")
    if ends is None:
        return values
    return [values[begin:end] for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
