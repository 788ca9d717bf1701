"""Items in the verbs on events: their topic, its records and their schema, with retrieval alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamlearn.apps import load_app
from streamlearn.errors import UsageError
from streamlearn.events import Producer
from tests.library.place import T_MS

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
