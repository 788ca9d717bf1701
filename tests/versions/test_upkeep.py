"""Upkeep files: what a table knows beside its rows, refused by name when it cannot be a table's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamlearn.errors import VersionDefect
from streamlearn.table import TableSet, Upkeep
from streamlearn.versions import Chain, Cut, Store, VersionWriter, load
from streamlearn.versions.format.manifest import FileEntry
from streamlearn.versions.format.pieces import write_bytes
from streamlearn.versions.format.split import Place
from streamlearn.versions.store.settings import FileSettings
from tests.versions.history import MODEL, OPTIONS, PARTS, Trainer


def written(store: Store, named: dict[str, bytes] | None, upkeep: Upkeep | None = None) -> None:
    """A version whose upkeep is made by hand."""
    head = Trainer(store).head(1)
    writer = VersionWriter(store, head)
    writer.add_rows([])
    entry = FileEntry(kind="upkeep", path="upkeep/main-0", rows=0, bytes=0, sha256="0" * 64, table="main")
    if upkeep is not None:
        writer.add_upkeep("main", upkeep)
    entries = write_bytes(Place(store, head.folder, FileSettings()), entry, named) if named is not None else []
    writer.finish(Cut(), entries)


def good(**changed: Any) -> dict[str, bytes]:
    said: dict[str, Any] = {
        "parts": np.array([3, 5], "<u2"), "ends": np.array([2, 4], "<i8"), "pages": b"abcd",
        "hands": np.zeros(PARTS, "<u8"), "next": np.array([7], "<u2"),
    }  # fmt: skip
    return {name: value if isinstance(value, bytes) else value.tobytes() for name, value in (said | changed).items()}


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (good(hands=b"\0" * 8), "it has 1 hands"),
        (good(hands=b"\0" * 9), "its 'hands' has 9 bytes"),
        (good(ends=np.array([2], "<i8")), "its pages of parts"),
        (good(ends=np.array([2, 5], "<i8")), "its pages of parts"),
        (good(ends=np.array([5, 4], "<i8")), "its pages of parts"),
        (good(parts=np.array([3, 1024], "<u2")), "its pages of parts"),
        ({"pages": b""}, "its 'hands' is missing"),
        (good(), "upkeep of table 'main'"),
    ],
)
def test_upkeep_that_is_no_tables_is_refused(local: Store, named: dict[str, bytes], said: str) -> None:
    written(local, named)
    with pytest.raises(VersionDefect, match=said) as refused:
        load(Chain.find(local, MODEL), TableSet(OPTIONS), training=True)
    assert refused.value.defect == "corrupted"


def test_serving_reads_no_upkeep(local: Store) -> None:
    written(local, good(hands=b""))
    assert load(Chain.find(local, MODEL), TableSet(OPTIONS)).manifest.version == 1


def test_pages_and_hands_of_unwanted_parts_are_left_aside(local: Store) -> None:
    trainer = Trainer(local)
    trainer.learn(1, 200)
    upkeep = trainer.tables["main"].upkeep()
    hands = np.arange(PARTS, dtype=np.uint64)
    written(local, None, Upkeep(upkeep.pages, 9, hands))
    tables = TableSet(OPTIONS)
    load(Chain.find(local, MODEL), tables, training=True, parts=(256, 512))
    found = tables["main"].upkeep()
    assert found.pages == {part: page for part, page in upkeep.pages.items() if 256 <= part < 512}
    assert found.hands.tolist() == [part if 256 <= part < 512 else 0 for part in range(PARTS)]
    assert found.next_part == 9
