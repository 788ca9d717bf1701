"""Stores of every kind, alike for the tests of what all of them promise."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamlearn.settings.versions import VersionSettings
from streamlearn.versions import Store, open_store
from tests.versions.server import options, s3_server, session

KINDS = ("local", "memory", "s3")


@pytest.fixture(scope="session")
def s3_address() -> Iterator[str]:
    import s3fs

    with s3_server() as address:
        s3fs.S3FileSystem(**options(address), skip_instance_cache=True).mkdir("models")
        yield address


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Store]:
    """Opens one and the same empty store, again and again."""
    name = f"t-{uuid.uuid4().hex}"
    if request.param == "s3":
        address = request.getfixturevalue("s3_address")
        said = options(address) | {"session": session()}
        return lambda **limits: open_store(f"s3://models/{name}", options=said, settings=VersionSettings(**limits))
    url = f"memory://{name}" if request.param == "memory" else tmp_path.as_uri() + "/store"
    return lambda **limits: open_store(url, settings=VersionSettings(**limits))


@pytest.fixture
def store(opened: Callable[..., Store]) -> Store:
    return opened()


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))
