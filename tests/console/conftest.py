"""What tests of the console share: a model with versions and two nodes, and a console of it on a free port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from msgspec import structs

from streamlearn.console import ConsoleServer
from streamlearn.settings import Settings
from streamlearn.settings.console import ConsoleSettings
from streamlearn.settings.versions import ReplicaSettings
from streamlearn.testing import wait_until
from streamlearn.versions import Replica, Verdict, open_registry, open_store, write_verdict
from streamlearn.versions.pointer.model import Model
from tests.cli.place import VERSIONS, Place
from tests.console.asked import TOKEN, Asked
from tests.versions.history import MODEL, Trainer, serving

__all__: list[str] = []

DEADLINE_S = 300.0
FAST = ConsoleSettings(listen="127.0.0.1:0", refresh_s=0.05, versions_s=0.05, move_wait_s=240.0, arrival_s=240.0)


Opener: TypeAlias = Callable[..., "Console"]


@dataclass(frozen=True)
class Console:
    """A console and what it shows."""

    place: Place
    server: ConsoleServer
    ask: Asked


@contextmanager
def made(folder: Path) -> Iterator[Place]:
    store = open_store(str(folder / "store"))
    with open_registry(f"sqlite://{folder}/registry.db", MODEL) as registry:
        found = Place(folder, store, registry, Trainer(store))
        for one in found.trainer.story(VERSIONS):
            write_verdict(store, one.folder, Verdict(version=one.ref, outcome="passed"))
        found.follow(*VERSIONS)
        yield found


@contextmanager
def _followed(place: Place) -> Iterator[list[Replica]]:
    settings = ReplicaSettings(beat_s=0.05, store_poll_s=0.05, retry_first_ms=1, retry_ms_max=10, drain_s=0.0)
    with ExitStack() as stack:
        found = [
            Replica(
                place.store, MODEL, lambda: serving("float32"), name=name, registry=place.registry, settings=settings
            )
            for name in ("node-1", "node-2")
        ]
        for one in found:
            stack.callback(one.close)
            one.start()
        wait_until(
            lambda: [(one.active, one.state) for one in place.registry.nodes()] == [(5, "ready")] * 2,
            "both nodes say that they answer with version 5",
            DEADLINE_S,
        )
        yield found


@contextmanager
def _opening(place: Place) -> Iterator[Opener]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        # Nobody is late because the machine stands still.
        patch.setattr("streamlearn.console.api._LOOK_WAIT_S", DEADLINE_S)
        patch.setattr("streamlearn.bounded_server._EVICTION_S_MAX", DEADLINE_S)

        def serve(*, token: bytes | None = TOKEN, tls: tuple[Path, Path] | None = None, **changed: Any) -> Console:
            settings = structs.replace(FAST, **changed)
            url = f"sqlite://{place.folder}/registry.db"
            model = Model(MODEL, str(place.folder / "store"), url, Settings(console=settings))
            server = stack.enter_context(ConsoleServer(model, settings, token=token, tls=tls))
            return Console(place, server, Asked(server.address))

        yield serve


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A model with four versions that passed, of which 5 is served."""
    with made(tmp_path) as found:
        yield found


@pytest.fixture
def nodes(place: Place) -> Iterator[list[Replica]]:
    """Two nodes that answer with what the pointer says."""
    with _followed(place) as found:
        yield found


@pytest.fixture
def open_console(place: Place) -> Iterator[Opener]:
    """Serves a console of it; settings and what it is given may be others."""
    with _opening(place) as serve:
        yield serve


@pytest.fixture
def console(open_console: Opener) -> Console:
    """A console that may be moved with the token."""
    return open_console()


@pytest.fixture(scope="package")
def still_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Such a model for all tests here that leave it as it is; its nodes end before others look for threads."""
    with made(tmp_path_factory.mktemp("still")) as found:
        yield found


@pytest.fixture(scope="package")
def still_nodes(still_place: Place) -> Iterator[list[Replica]]:
    """Its two nodes."""
    with _followed(still_place) as found:
        yield found


@pytest.fixture
def open_still(still_place: Place) -> Iterator[Opener]:
    """Serves a console of it; settings and what it is given may be others."""
    with _opening(still_place) as serve:
        yield serve


@pytest.fixture
def still(open_still: Opener) -> Iterator[Console]:
    """A console of it, whose pointer is where it was when the test ends."""
    opened = open_still()
    yield opened
    assert opened.place.pointer.seq == 4
