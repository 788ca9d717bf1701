"""Following: files come and change with the registry, whole, and nothing is lost when it is away."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streamlearn.cli.main import cli
from streamlearn.errors import RegistryUnreachable, UsageError
from streamlearn.gateway.envoy import Certificates
from streamlearn.gateway.envoy_process import find_envoy
from streamlearn.gateway.follow import Follower
from streamlearn.gateway.plan import Application
from streamlearn.settings.access import GatewaySettings
from streamlearn.testing import MemoryRegistry
from streamlearn.versions import Node
from tests.gateway.place import folder_of
from tests.gateway.test_plan import node

_SETTINGS = GatewaySettings(listen="127.0.0.1:8080")


def _ports(folder: Path) -> list[int]:
    content = json.loads((folder / "eds" / "ctr.grpc.json").read_text())
    return [
        one["endpoint"]["address"]["socket_address"]["port_value"]
        for one in content["resources"][0]["endpoints"][0]["lb_endpoints"]
    ]


def test_files_follow_the_registry_and_what_did_not_change_is_left(tmp_path: Path) -> None:
    registry = MemoryRegistry("ctr")
    follower = Follower([Application("ctr", "ctr", _SETTINGS)], [registry], tmp_path, Certificates())
    registry.beat(node(1, grpc="127.0.0.1:1"))
    follower.step()
    assert _ports(tmp_path) == [1]
    before = {file: file.stat().st_ino for file in tmp_path.rglob("*.json")}
    registry.beat(node(2, grpc="127.0.0.1:2"))
    follower.step()
    assert _ports(tmp_path) == [1, 2]
    # A file that changed is another one, renamed into its place: Envoy never sees half of it.
    changed = {str(file.relative_to(tmp_path)) for file, inode in before.items() if file.stat().st_ino != inode}
    assert changed == {"eds/ctr.grpc.json", "eds/ctr.http.json"}
    assert not [file for file in tmp_path.rglob("*") if file.suffix == ".new"]


def test_without_its_registry_it_keeps_what_it_knows_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    registry = MemoryRegistry("ctr")
    registry.beat(node(1, grpc="127.0.0.1:1"))
    follower = Follower([Application("ctr", "ctr", _SETTINGS)], [registry], tmp_path, Certificates())
    follower.step()

    def away() -> list[Node]:
        message = "it does not answer"
        raise RegistryUnreachable(message)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(registry, "nodes", away)
        follower.step()
        follower.step()
        assert _ports(tmp_path) == [1]
        # One that was flushed lists no node, and is not believed.
        patch.setattr(registry, "nodes", list)
        follower.step()
        assert _ports(tmp_path) == [1]
    assert [record.message for record in caplog.records] == [
        "the registry of 'ctr' does not answer, so its nodes stay as they are: it does not answer",
        "the registry lists no node of 'ctr'; those known before stay",
    ]


def test_one_that_begins_without_its_registry_leaves_the_files_of_an_envoy_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = MemoryRegistry("ctr")
    registry.beat(node(1, grpc="127.0.0.1:1"))
    applications = [Application("ctr", "ctr", _SETTINGS)]
    Follower(applications, [registry], tmp_path, Certificates()).step()
    before = {file: file.stat().st_ino for file in tmp_path.rglob("*.json")}

    def away() -> list[Node]:
        message = "it does not answer"
        raise RegistryUnreachable(message)

    later = Follower(applications, [registry], tmp_path, Certificates())
    with monkeypatch.context() as patch:
        patch.setattr(registry, "nodes", away)
        with pytest.raises(UsageError, match="registered for 'ctr': the registry of 'ctr' does not answer"):
            later.step()
    assert {file: file.stat().st_ino for file in tmp_path.rglob("*.json")} == before
    registry.beat(node(2, grpc="127.0.0.1:2"))
    later.step()
    assert _ports(tmp_path) == [1, 2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "access.listen=127.0.0.1:8080"), "no node that can be reached is registered for 'ctr'"),
        ((), "access.listen is not set"),
        (("--run", "--once"), "--run and --once exclude each other"),
    ],
)
def test_the_verb_says_what_is_missing(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    folder = folder_of(tmp_path, "ctr")
    done = CliRunner().invoke(cli, ["access", str(folder), "--out", str(tmp_path / "o"), *words])
    error: Any = done.exception
    assert message in error.message
    assert error.help


def test_a_machine_without_envoy_is_told_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("streamlearn.gateway.envoy_process.find_spec", lambda _: None)
    with pytest.raises(Exception, match="this machine has no Envoy") as error:
        find_envoy()
    assert "[access]" in str(getattr(error.value, "help", ""))
