"""A long log of the pointer: whoever is told how far it is need not list it, and is never led astray."""

from __future__ import annotations

import uuid

import pytest

from streamlearn.testing import MemoryRegistry
from streamlearn.versions import Pointer, PointerLog, Replica, Store, open_store
from streamlearn.versions.store.interface import Entry
from tests.versions.history import MODEL, Trainer, serving
from tests.versions.nodes import SpiedStore

MOVES = 40


class _Listed(SpiedStore):
    """A store that notes which folders are listed."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.listed: list[str] = []

    def entries(self, folder: str) -> list[Entry]:
        self.listed.append(folder)
        return super().entries(folder)


@pytest.fixture
def store() -> _Listed:
    found = _Listed(open_store(f"memory://{uuid.uuid4().hex}"))
    ref = Trainer(found).cut(1).ref
    log = PointerLog(found, MODEL)
    for _ in range(MOVES):
        log.move(lambda now: Pointer(active=ref), by="me")
    found.listed.clear()
    return found


@pytest.mark.parametrize("near", [MOVES, MOVES - 3])
def test_the_newest_move_is_found_from_one_that_is_near_without_a_listing(store: _Listed, near: int) -> None:
    log = PointerLog(store, MODEL)
    log.begin_near(near)
    assert log.newest().seq == MOVES
    assert store.listed == []


@pytest.mark.parametrize("near", [0, 1, MOVES + 1, 10**11])
def test_a_wrong_word_of_where_it_is_leads_nobody_astray(store: _Listed, near: int) -> None:
    log = PointerLog(store, MODEL)
    log.begin_near(near)
    assert log.newest().seq == MOVES
    assert store.listed == [f"{MODEL}/pointer"]


def test_a_node_that_starts_lists_no_long_log_where_a_registry_says_how_far_it_is(store: _Listed) -> None:
    registry = MemoryRegistry(MODEL)
    registry.announce(PointerLog(store.inner, MODEL).newest())
    node = Replica(store, MODEL, lambda: serving("float32"), name="node-1", registry=registry)
    node.step()
    assert (node.status().seq, node.status().error) == (MOVES, "")
    assert f"{MODEL}/pointer" not in store.listed
    node.close()
