"""The plan: which processes there are, what each is told, and where it answers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamlearn.errors import ServiceError, UsageError
from streamlearn.settings import Settings
from streamlearn.supervision import Member, planned
from streamlearn.supervision.plan import Plan, UpOptions
from streamlearn.testing import small_folder


def plan(
    asked: UpOptions | None = None,
    taken: Sequence[int] = (),
    shared: Sequence[dict[str, str]] | None = None,
    **sections: dict[str, Any],
) -> Plan:
    """A plan with ports from 20,000 on as the free ones."""
    folder = small_folder(Path("/srv/small"), settings=msgspec.convert(sections, Settings))
    ports = itertools.count(20_000)
    return planned(
        folder, asked or UpOptions(), lambda count: [next(ports) for _ in range(count)], lambda port, _: port in taken,
        shared=shared,
    )  # fmt: skip


def names(found: Plan) -> list[str]:
    return [one.name for one in found.members]


def member(found: Plan, name: str) -> Member:
    return next(one for one in found.members if one.name == name)


def told(one: Member, setting: str) -> str | None:
    """The last value that a member is told of a setting."""
    values = [word.partition("=")[2] for word in one.command if word.startswith(f"{setting}=")]
    return values[-1] if values else None


def test_by_default_there_are_ingest_a_trainer_with_its_own_tables_and_a_node() -> None:
    found = plan()
    assert names(found) == ["ingest", "trainer", "node-1"]
    assert member(found, "ingest").command[3:5] == ("ingest", "/srv/small")
    assert member(found, "trainer").needs == ()
    assert told(member(found, "trainer"), "ps.addresses") is None
    node = member(found, "node-1")
    assert (node.where["grpc"], node.where["http"]) == ("127.0.0.1:8001", "127.0.0.1:8000")
    assert node.command[3:11] == (
        "serve", "/srv/small", "--name", "node-1", "--listen", "127.0.0.1:8001", "--http", "127.0.0.1:8000",
    )  # fmt: skip


def test_every_process_has_metrics_of_its_own_at_a_free_port() -> None:
    found = plan()
    addresses = [told(one, "telemetry.listen") for one in found.members]
    assert len({*addresses, found.metrics}) == 4
    assert [one.where["metrics"] for one in found.members] == addresses


def test_a_configured_address_of_metrics_is_the_first_of_a_row() -> None:
    found = plan(telemetry={"listen": "10.0.0.7:9100"})
    assert found.metrics == "10.0.0.7:9100"
    addresses = ["10.0.0.7:9101", "10.0.0.7:9102", "10.0.0.7:9103"]
    assert [told(one, "telemetry.listen") for one in found.members] == addresses


def test_nodes_are_ten_ports_apart_or_at_free_ones() -> None:
    found = plan(UpOptions(nodes=3))
    assert [member(found, f"node-{at}").where["grpc"] for at in (1, 2, 3)] == [
        "127.0.0.1:8001", "127.0.0.1:8011", "127.0.0.1:8021",
    ]  # fmt: skip
    found = plan(front={"listen": "127.0.0.1:0", "http": ""}, up={"nodes": 2})
    assert names(found) == ["ingest", "trainer", "node-1", "node-2"]
    first, second = member(found, "node-1"), member(found, "node-2")
    assert first.where["grpc"] != second.where["grpc"]
    assert "http" not in first.where
    assert first.command[first.command.index("--http") + 1] == "none"


def test_shards_that_are_asked_for_are_named_to_everybody_and_the_trainer_needs_them() -> None:
    found = plan(UpOptions(shards=2))
    assert names(found) == ["shard-0", "shard-1", "ingest", "trainer", "node-1"]
    addresses = [member(found, f"shard-{at}").where["frames"] for at in (0, 1)]
    assert all(told(one, "ps.addresses") == json.dumps(addresses) for one in found.members)
    assert member(found, "trainer").needs == ("shard-0", "shard-1")
    command = member(found, "shard-1").command
    assert command[command.index("--shard") + 1] == "1/2"
    assert command[command.index("--listen") + 1] == addresses[1]


def test_configured_shards_of_this_machine_are_started_and_others_are_only_asked() -> None:
    found = plan(ps={"addresses": ["127.0.0.1:7301", "10.0.0.2:7301", "unix:/run/shard-2"]})
    assert names(found) == ["shard-0", "shard-2", "ingest", "trainer", "node-1"]
    assert "2/3" in member(found, "shard-2").command
    assert member(found, "trainer").needs == ("shard-0", "shard-2")
    found = plan(UpOptions(shards=0), ps={"addresses": ["127.0.0.1:7301"]})
    assert names(found) == ["ingest", "trainer", "node-1"]
    assert told(member(found, "trainer"), "ps.addresses") == '["127.0.0.1:7301"]'


def test_settings_of_the_command_line_are_told_to_all_before_what_is_planned() -> None:
    found = plan(UpOptions(("trainer.step_rows=7", "telemetry.listen=127.0.0.1:1")))
    for one in found.members:
        assert told(one, "trainer.step_rows") == "7"
        assert told(one, "telemetry.listen") != "127.0.0.1:1"


def test_files_with_secrets_go_to_those_who_need_them() -> None:
    found = plan(UpOptions(shards=1, token_file=Path("a"), shards_token_file=Path("b"), tls=(Path("c"), Path("d"))))
    files = {one.name: [one.command[at + 1] for at, word in enumerate(one.command) if "-" in word and word[2:] in (
        "token-file", "tls-cert", "tls-key")] for one in found.members}  # fmt: skip
    assert files == {"shard-0": ["b"], "ingest": [], "trainer": ["b"], "node-1": ["a", "c", "d"]}


def test_a_taken_port_is_named_with_what_to_do() -> None:
    with pytest.raises(ServiceError, match=r"127\.0\.0\.1:8011 is already in use") as caught:
        plan(UpOptions(nodes=2), taken=[8_011])
    assert "front.listen=127.0.0.1:0" in caught.value.help


def test_nodes_have_the_addresses_of_the_sockets_that_they_share_though_these_are_taken() -> None:
    shared = [{"grpc": "10.0.0.7:1", "http": "10.0.0.7:2"}, {"grpc": "[::1]:3", "http": "[::1]:4"}]
    found = plan(UpOptions(nodes=2, beside=Path("old")), taken=[1, 2, 3, 4, 8_001], shared=shared)
    assert [one.listens for one in found.members] == [{}, {}, *shared]
    command = member(found, "node-2").command
    assert (command[command.index("--listen") + 1], command[command.index("--http") + 1]) == ("[::1]:3", "[::1]:4")


def test_nodes_share_sockets_only_with_as_many_of_the_same_protocols() -> None:
    shared = [{"grpc": "10.0.0.7:1", "http": "10.0.0.7:2"}]
    with pytest.raises(UsageError, match="old runs 1 nodes, and this application 2") as caught:
        plan(UpOptions(nodes=2, beside=Path("old")), shared=shared)
    assert "--nodes 1" in caught.value.help
    with pytest.raises(UsageError, match="only one of old and this application answer by HTTP"):
        plan(UpOptions(beside=Path("old")), shared=shared, front={"http": ""})


@pytest.mark.parametrize(
    ("asked", "sections", "said"),
    [
        (UpOptions(shards=3), {"ps": {"addresses": ["127.0.0.1:1", "127.0.0.1:2"]}}, "--shards asks for 3"),
        (UpOptions(shards=65), {}, "one machine runs at most 64"),
        (UpOptions(), {"front": {"listen": "127.0.0.1:8000"}}, "two processes would listen on 127.0.0.1:8000"),
        (UpOptions(), {"front": {"listen": "8000"}}, "not an address"),
        (UpOptions(nodes=9), {"front": {"listen": "127.0.0.1:65500"}}, "would need port"),
        (UpOptions(), {"telemetry": {"listen": "127.0.0.1:65534"}}, "4 ports from it on"),
    ],
)
def test_what_contradicts_itself_is_refused(asked: UpOptions, sections: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        plan(asked, **sections)
    assert caught.value.help


def test_envoy_begins_after_the_nodes_and_ends_before_them() -> None:
    found = plan(UpOptions(nodes=2), access={"listen": "127.0.0.1:8080"})
    access = member(found, "access")
    assert access.needs == ("node-1", "node-2")
    assert access.stage < member(found, "node-1").stage
    assert access.command[3:8] == ("access", "/srv/small", "--run", "--wait", "600")
    assert access.where["access"] == "127.0.0.1:8080"
    assert not access.listens
    with pytest.raises(ServiceError, match="8080"):
        plan(taken=[8080], access={"listen": "127.0.0.1:8080"})


def test_an_experiment_with_other_applications_is_not_for_up() -> None:
    arms = [{"name": "a", "app": "small", "share": 0.5}, {"name": "b", "app": "other", "share": 0.5}]
    with pytest.raises(UsageError, match="names other") as error:
        plan(access={"listen": "127.0.0.1:8080", "experiments": [{"name": "x", "arms": arms}]})
    assert "streamlearn access" in error.value.help


def test_lists_of_candidates_are_kept_where_that_is_set() -> None:
    asked = UpOptions(token_file=Path("/token"), tls=(Path("/cert"), Path("/key")))
    found = plan(asked, retrieval={"nearline": "ranked"})
    command = member(found, "nearline").command
    assert command[3:9] == ("nearline", "/srv/small", "--token-file", "/token", "--ca", "/cert")
    assert len({one.where["metrics"] for one in found.members}) == len(found.members)
    asked = UpOptions(tls=(Path("/cert"), Path("/key")), authority=Path("/ca"))
    found = plan(asked, retrieval={"nearline": "ranked"})
    assert [member(found, name).command[member(found, name).command.index("--ca") + 1] for name in (
        "nearline", "node-1")] == ["/ca", "/ca"]  # fmt: skip
    assert "nearline" not in names(plan())
    with pytest.raises(UsageError, match="--ca is given without --tls-cert"):
        UpOptions(authority=Path("/ca"))
