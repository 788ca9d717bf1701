"""Parameter servers as tests want them: in this process, and on shards that listen on this machine."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from streamlearn.ps import Epoch, Place, PsClient, ShardServer, Shelf
from streamlearn.settings import PsSettings
from streamlearn.versions import Store, open_store
from tests.ps.model import MODEL, OPTIONS

SETTINGS = PsSettings(retry_wait_ms_max=120_000, order_wait_s_max=120.0, push_block_keys=512, pull_block_keys=700)


@pytest.fixture(autouse=True)
def _plain_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports are worth as much to the system's scheduler as all else that runs beside the tests."""
    monkeypatch.setattr("streamlearn.ps.server._EXPORT_NICE", 0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "versions"))


@pytest.fixture(params=["local", 1, 3], ids=["in process", "one shard", "three shards"])
def client(request: pytest.FixtureRequest, store: Store) -> Iterator[PsClient]:
    """A client whose shards stand at empty tables."""
    with ExitStack() as stack:
        if request.param == "local":
            made = PsClient.local(OPTIONS, Shelf(store, MODEL))
        else:
            settings = listening(stack, store, request.param)
            made = PsClient.connect(MODEL, OPTIONS, settings)
        stack.enter_context(made)
        made.restore(Epoch(1), None)
        yield made


def listening(stack: ExitStack, store: Store, count: int) -> PsSettings:
    """Settings of a client of some shards that listen until the stack is closed."""
    servers = [ShardServer(Place(number, count), OPTIONS, Shelf(store, MODEL), SETTINGS) for number in range(count)]
    stack.callback(_stop_all, servers)
    return msgspec.structs.replace(SETTINGS, addresses=[server.addresses[0] for server in servers])


def _stop_all(servers: Sequence[ShardServer]) -> None:
    """Stop them at once: each waits for what was begun, for a fraction of a second."""
    with ThreadPoolExecutor(len(servers)) as pool:
        list(pool.map(ShardServer.stop, servers))


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        extra = {name: getattr(record, name, None) for name in ("rows", "files", "bytes", "seconds", "model", "parts")}
        self.lines.append(
            record.getMessage() + "".join(f" {name}={value}" for name, value in extra.items() if value is not None)
        )


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What the parameter server logs, line by line."""
    log, handler = logging.getLogger("streamlearn.ps"), _Lines()
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler.lines
    log.removeHandler(handler)
    log.setLevel(before)
