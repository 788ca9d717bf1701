"""Items in verbs: their topic, its records and their schema, and the library of a version."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamlearn.apps import load_app
from streamlearn.errors import UsageError, VersionDefect
from streamlearn.events import Producer
from streamlearn.versions import compact, open_store
from tests.library.history import Writer
from tests.library.place import T_MS
from tests.library.statements import Said, keys_for, updates_of

APP = "from tests.library.place import library_app\n\napp = library_app()\n"


@pytest.fixture
def shop(small: Path) -> Path:
    """The folder of the small application, with a library."""
    (small / "app.py").write_text(APP)
    return small


def test_items_are_created_written_and_peeked(shop: Path, verb: Callable[..., Any]) -> None:
    created = {row["topic"]: row for row in json.loads(verb("topics", shop, "--create", 3, "--json").stdout)}
    assert [created["items"][name] for name in ("partitions", "retention_ms", "compacted")] == [3, -1, True]
    item = json.loads(verb("schema", shop, "item", "--example").stdout)
    assert item.pop("kind") == "item"
    with Producer(load_app(shop)) as producer:
        producer.item(**item)
        producer.remove_item(9, T_MS)
    lines = [json.loads(line) for line in verb("peek", shop, "items").stdout.splitlines()]
    assert {line["record"] for line in lines} == {"item"}
    assert {line["item_id"]: line["features"] for line in lines} == {item["item_id"]: item["features"], 9: None}


def test_without_retrieval_there_are_no_items(small: Path, verb: Callable[..., Any]) -> None:
    verb("topics", small, "--create", 1)
    assert "items" not in verb("topics", small).stdout
    assert isinstance(refused := verb("schema", small, "item").exception, UsageError)
    assert refused.message == "app 'small' has no items in a topic"


@pytest.fixture
def versions(small: Path) -> Writer:
    """Versions of a library in the store of an application, whose ids are texts: a base, and two deltas."""
    (small / "app.py").write_text(
        'from tests.library.place import library_app\n\napp = library_app("str", name="items")\n'
    )
    folder = load_app(small)
    writer = Writer(folder.app, open_store(folder.store_url, settings=folder.settings.versions))
    for version, said in enumerate((Said(1, 1, 4, 9, is_written=False), Said(2, 2, 5, 9, is_written=True)), 1):
        writer.library.apply(updates_of(folder.app, [said]))
        writer.cut(version)
    writer.library.apply(updates_of(folder.app, [Said(1, 60, None, 9, is_written=True)]))
    writer.cut(3)
    return writer


def test_the_library_of_a_version_is_counted(small: Path, versions: Writer, verb: Callable[..., Any]) -> None:
    def counted(*words: object) -> Any:
        return json.loads(verb("library", small, "--json", *words).stdout)

    assert counted() == {
        "version": 3, "items": 1, "shown": 0, "written": 1, "removed": 1, "newest_change": "2023-11-14 22:14:20",
    }  # fmt: skip
    assert counted("--version", 2) == {
        "version": 2, "items": 2, "shown": 1, "written": 1, "removed": 0, "newest_change": "2023-11-14 22:13:22",
    }  # fmt: skip
    lines = verb("library", small).stdout.splitlines()
    assert lines[1].split() == ["version", "3"]
    assert any(line.split() == ["newest", "change", "2023-11-14", "22:14:20"] for line in lines)


def test_an_item_is_shown_with_its_source_and_its_first_version(
    small: Path, versions: Writer, verb: Callable[..., Any]
) -> None:
    def item(name: str, *words: object) -> Any:
        return json.loads(verb("library", small, "--item", name, "--json", *words).stdout)

    written = item("item 2")
    assert [written[name] for name in ("is_in_library", "source", "since", "removed", "first_version")] == [
        True, "topic of items", "2023-11-14 22:13:22", None, "2",
    ]  # fmt: skip
    assert written["features"]["vector"] == [5.0, 5.0, 5.0]
    assert written["features"]["video_id"] == [f"{int(keys_for(versions.app, [2])[0]):016x}"]
    removed = item("item 1")
    assert (removed["is_in_library"], removed["removed"], removed["source"]) == (False, "2023-11-14 22:14:20", "shown")
    assert item("item 1", "--version", 1)["is_in_library"] is True
    assert item("item 9") == {"version": 3, "item": "item 9", "is_in_library": False}
    assert "feature vector" in verb("library", small, "--item", "item 2").stdout
    compact(versions.store, "items")
    assert item("item 2")["first_version"] == "3 or before"


def test_what_is_not_there_is_a_wrong_use(small: Path, shop: Path, verb: Callable[..., Any]) -> None:
    refused = verb("library", shop, "--item", "seven").exception
    assert refused.message == "--item 'seven' is not a whole number of 64 bits, as video_id is"
    assert isinstance(verb("library", shop).exception, VersionDefect)


def test_an_application_without_a_library_says_so(small: Path, verb: Callable[..., Any]) -> None:
    assert verb("library", small).exception.message == "app 'small' has no library of items"
