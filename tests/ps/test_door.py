"""Whether a shard answers itself: by itself, beside others, with a token, by TLS, and while it stands still."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamlearn.ps import Door, Place, ShardServer, Shelf
from streamlearn.testing import wait_until
from streamlearn.versions import Store
from tests.ps.conftest import SETTINGS
from tests.ps.model import MODEL, OPTIONS
from tests.ps.test_server import _authority

_WAIT_S = 120.0
_SOON = msgspec.structs.replace(SETTINGS, backoff_ms_max=50)


@pytest.mark.parametrize("place", [Place(), Place(1, 2)], ids=str)
def test_a_shard_answers_itself_until_it_is_stopped(store: Store, place: Place) -> None:
    server = ShardServer(place, OPTIONS, Shelf(store, MODEL), SETTINGS, token=b"a word")
    door = Door(server.addresses[0], place, MODEL, OPTIONS, _SOON, token=b"a word")
    with server:
        for _ in range(3):
            assert door.answers(_WAIT_S)
    assert not door.answers(1.0)
    door.close()


def test_a_shard_with_tls_answers_itself(store: Store, tmp_path: Path) -> None:
    authority, *own = _authority(tmp_path, "mine")
    with ShardServer(Place(), OPTIONS, Shelf(store, MODEL), SETTINGS, tls=(own[0], own[1])) as server:
        settings = msgspec.structs.replace(_SOON, tls_ca=str(authority))
        door = Door(server.addresses[0], Place(), MODEL, OPTIONS, settings)
        assert door.answers(_WAIT_S)
        door.close()


def test_one_whose_thread_of_orders_stands_still_does_not_and_goes_on_after(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_in, go_on = threading.Event(), threading.Event()
    with ShardServer(Place(), OPTIONS, Shelf(store, MODEL), SETTINGS) as server:
        obey = server.shard.obey

        def stand_still(order: Any) -> Any:
            is_in.set()
            assert go_on.wait(_WAIT_S)
            return obey(order)

        monkeypatch.setattr(server.shard, "obey", stand_still)
        door = Door(server.addresses[0], Place(), MODEL, OPTIONS, _SOON)

        def stands_still() -> bool:
            assert not door.answers(0.2)
            return is_in.is_set()

        wait_until(stands_still, "the order to be begun")
        go_on.set()
        assert door.answers(_WAIT_S)
        door.close()
