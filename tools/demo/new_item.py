"""NewItem: an item that is written while nodes answer, how soon they find it, and how a rollback takes it back."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamlearn.apps import AppFolder
from streamlearn.cli.events.record_output import shown_records
from streamlearn.events import Producer
from tools.demo.found_items import FoundItems, VersionItems, find, user_of
from tools.demo.loop import Loop

__all__ = ["Item", "NewItem", "items_of", "see_new_item", "write_items"]

Item = tuple[Any, Mapping[str, Any]]
"""An id, and the other features by name."""
_FOUND_S_MAX, _USERS = 60.0, 3
_RECORDS, _WAIT_MS, _SERVED = 64, 10_000, "served_"


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


def items_of(folder: AppFolder, count: int) -> list[Item]:
    """Return some distinct items that were shown, from the topic of impressions."""
    show, item_id = shown_records(folder, "impressions", controls=False), folder.app.features.item_id
    found: dict[Any, Mapping[str, Any]] = {}
    with folder.open_topic("impressions") as topic, topic.reader() as reader:
        at, end = reader.earliest(0), reader.end(0)
        while at < end and len(found) < count:
            records = reader.read(0, at, max_records=_RECORDS, wait_ms=_WAIT_MS)
            at = records.next_offset
            for item in (item for _, event in show(records) for item in event["items"]):
                names = (name for name in item if name != item_id and not name.startswith(_SERVED))
                found[item[item_id]] = {name: item[name] for name in names}
    return list(found.items())[:count]


def write_items(folder: AppFolder, items: Sequence[Item]) -> None:
    """Write items to their topic, as they are from now on."""
    with Producer(folder) as producer:
        for item, features in items:
            producer.item(item, time.time_ns() // 1_000_000, features)


def see_new_item(loop: Loop, items: Sequence[Item]) -> NewItem:
    """Write an item that is like the first of those that nodes find, wait until all find it, and roll back."""
    app, active = loop.folder.app, loop.model.pointer.active
    assert active is not None
    is_text, (like, features) = app.features.slot(app.features.item_id).value == "str", items[0]
    new = f"{like} new" if is_text else max(item for item, _ in items) + 1
    k, users = len(items) + 1, [user_of(app, at + 1, [new, like][:at]) for at in range(_USERS)]
    seen: list[FoundItems] = []

    def asked() -> list[FoundItems]:
        lists = [find(address, user, k, token=loop.token) for address in loop.http for user in users]
        seen.extend(lists)
        return lists

    asked()
    begin_s = time.perf_counter()
    write_items(loop.folder, [(new, features)])
    loop.wait(
        lambda: all(new in find(address, users[0], k, token=loop.token).ids for address in loop.http),
        "all nodes to find a new item", _FOUND_S_MAX,
    )  # fmt: skip
    found_s = time.perf_counter() - begin_s
    asked()
    rolled = loop.verb("rollback", "--to", str(active.version), "--reason", "an item that must not be shown")
    after = asked()
    truth = {version: VersionItems(app, loop.model.store, version) for version in {found.version for found in seen}}
    left = [found for found in after if found.version != active.version or new in found.ids]
    return NewItem(
        found_s=found_s,
        back_ms=tuple(node["ms"] for node in rolled["acted"]),
        lists=len(seen),
        wrong="; ".join(filter(None, (truth[found.version].wrong(found) for found in seen)))[:500],
        left=f"{len(left)} lists of version {left[0].version}" if left else "",
    )
