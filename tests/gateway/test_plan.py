"""The plan of access: who is reached, and settings that contradict themselves or the applications."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from streamlearn.errors import ConfigError, StreamlearnError, UsageError
from streamlearn.gateway.envoy import weights_of
from streamlearn.gateway.plan import Application, Endpoint, check_nodes, planned
from streamlearn.settings.access import Arm, Experiment, GatewaySettings
from streamlearn.versions.pointer.registry import Node, NodeState

SETTINGS = GatewaySettings(listen="127.0.0.1:8080", trust_headers=True)


def node(number: int, state: NodeState = "ready", **more: object) -> Node:
    where = {"grpc": f"10.0.0.{number}:8001", "http": f"10.0.0.{number}:8000"}
    return Node(boot_id=str(number), name=f"n{number}", state=state, since_ms=number, **(where | more))  # type: ignore[arg-type]


Versions = dict[str, int | Literal["active", "canary"]]


def divided(
    *arms: tuple[str, str, float],
    settings: GatewaySettings = SETTINGS,
    versions: Versions | None = None,
    name: str = "tower",
) -> GatewaySettings:
    """Settings with an experiment, some of whose arms have versions."""
    listed = [Arm(name=arm, app=app, share=share, version=(versions or {}).get(arm)) for arm, app, share in arms]
    return structs.replace(settings, experiments=[Experiment(name=name, arms=listed)])


def test_nodes_of_applications_that_answer_to_one_name_are_one_backend() -> None:
    apps = [
        Application("old", "ctr", SETTINGS),
        Application("new", "ctr", SETTINGS),
        Application("cvr", "cvr", SETTINGS),
    ]
    nodes = {"old": [node(2), node(1, "stale")], "new": [node(3, "aside")], "cvr": [node(4, "draining", http="")]}
    plan = planned(apps, nodes)
    assert {model: [share.backend for share in shares] for model, shares in plan.shares.items()} == {
        "ctr": ["ctr"],
        "cvr": ["cvr"],
    }
    ctr, cvr = plan.backends
    assert [one.grpc for one in ctr.endpoints] == ["10.0.0.1:8001", "10.0.0.2:8001"]
    assert cvr.endpoints == (Endpoint("10.0.0.4:8001", "", True, False),)
    assert not plan.notes


def test_an_arm_is_a_backend_of_its_own_and_reaches_nodes_that_stand_aside() -> None:
    apps = [
        Application("ctr", "ctr", divided(("old", "ctr", 0.9), ("new", "ctr2", 0.1))),
        Application("ctr2", "ctr", GatewaySettings()),
    ]
    plan = planned(apps, {"ctr": [node(1)], "ctr2": [node(2, "aside"), node(3, "starting")]})
    assert [(share.backend, share.share, share.arm) for share in plan.shares["ctr"]] == [
        ("ctr.tower.old", 0.9, "tower:old"),
        ("ctr.tower.new", 0.1, "tower:new"),
    ]
    assert [one.is_aside for backend in plan.backends for one in backend.endpoints] == [False, True]


def test_arms_may_be_versions_of_one_application_and_one_that_no_node_keeps_is_named() -> None:
    arms, versions = (("old", "ctr", 0.5), ("now", "ctr", 0.4), ("new", "ctr", 0.1)), Versions(old=7, now="active")
    apps = [Application("ctr", "ctr", divided(*arms, versions={**versions, "new": "canary"}))]
    plan = planned(apps, {"ctr": [node(1, staged=(8, 9)), node(2, staged=(7, 8))]})
    assert [share.version for share in plan.shares["ctr"]] == ["7", "active", "canary"]
    assert not plan.notes
    check_nodes(plan)
    gone = planned(apps, {"ctr": [node(1, staged=(8, 9))]})
    assert gone.notes == (
        "no node keeps version 7 of arm tower:old; they have 8, 9. Its users get the active version, and count for "
        "no arm",
    )
    with pytest.raises(UsageError, match=r"no node keeps version 7 of arm tower:old; they have 8, 9") as error:
        check_nodes(gone)
    assert "replica.versions_kept" in error.value.help


def test_a_node_that_restarted_at_its_address_counts_once_as_it_is_now() -> None:
    before, now = node(1, "draining"), structs.replace(node(1), boot_id="x", since_ms=9)
    (backend,) = planned([Application("ctr", "ctr", SETTINGS)], {"ctr": [now, before]}).backends
    assert [one.is_draining for one in backend.endpoints] == [False]


def test_an_address_that_two_applications_register_is_that_of_the_later_one() -> None:
    apps = [Application("ctr", "ctr", SETTINGS), Application("cvr", "cvr", GatewaySettings())]
    plan = planned(apps, {"ctr": [node(1), node(2)], "cvr": [structs.replace(node(1), since_ms=9)]})
    assert [[one.grpc for one in backend.endpoints] for backend in plan.backends] == [
        ["10.0.0.2:8001"],
        ["10.0.0.1:8001"],
    ]
    (note,) = plan.notes
    assert note.startswith("10.0.0.1:8001 is registered by 'ctr' and later by 'cvr'")


@pytest.mark.parametrize("state", ["aside", "starting"])
@pytest.mark.parametrize("since_ms", [0, 9])
def test_an_address_that_two_applications_share_is_that_of_the_one_that_answers(
    state: NodeState, since_ms: int
) -> None:
    apps = [Application("ctr", "ctr", SETTINGS), Application("next", "ctr", GatewaySettings())]
    beside = structs.replace(node(1, state), since_ms=since_ms)
    for nodes in ({"ctr": [node(1)], "next": [beside]}, {"ctr": [beside], "next": [node(1)]}):
        plan = planned(apps, nodes)
        assert [[one.grpc for one in backend.endpoints] for backend in plan.backends] == [["10.0.0.1:8001"]]
        assert not plan.notes


@pytest.mark.parametrize(
    ("nodes", "listen", "note"),
    [
        ([node(1, grpc="", http="")], "127.0.0.1:80", "older release"),
        ([node(1)], "0.0.0.0:80", "needs no token"),
        ([node(1, has_tls=True), node(2)], "127.0.0.1:80", "10.0.0.2:8001: without TLS"),
    ],
)
def test_nodes_that_cannot_be_used_are_named(nodes: list[Node], listen: str, note: str) -> None:
    settings = structs.replace(SETTINGS, listen=listen)
    plan = planned([Application("ctr", "ctr", settings)], {"ctr": nodes})
    assert len(plan.backends[0].endpoints) == len(nodes) - 1
    assert note in plan.notes[0]


def test_an_application_without_nodes_is_an_error_that_says_why() -> None:
    plan = planned([Application("ctr", "ctr", SETTINGS)], {"ctr": [node(1, grpc="")]})
    with pytest.raises(UsageError, match=r"no node .* registered for 'ctr': node 'n1' is of an older release") as error:
        check_nodes(plan)
    assert "streamlearn serve" in error.value.help
    check_nodes(planned([Application("ctr", "ctr", SETTINGS)], {"ctr": [node(1)]}))


OTHER = Application("ctr2", "ctr", GatewaySettings())


@pytest.mark.parametrize(
    ("apps", "message", "hint"),
    [
        ([Application("ctr", "ctr", GatewaySettings())], "access.listen is not set", "--set access.listen="),
        ([Application("ctr", "ctr", GatewaySettings(listen="shop:80"))], "not an address", "HOST:PORT"),
        ([Application("ctr", "ctr", SETTINGS)] * 2, "two applications have one name", "once"),
        (
            [Application("ctr", "ctr", GatewaySettings(listen="127.0.0.1:1", balance="user"))],
            "removes x-route-key",
            "access.trust_headers",
        ),
        (
            [Application("ctr", "ctr", divided(("a", "ctr", 1.0), settings=GatewaySettings(listen="127.0.0.1:1")))],
            "removes",
            "access.trust_headers",
        ),
        (
            [Application("ctr", "ctr", divided(("a", "ctr", 0.5), ("b", "ctr2", 0.4))), OTHER],
            "sum to 0.9, not to 1",
            "a, b",
        ),
        (
            [Application("ctr", "ctr", divided(("a", "ctr", 0.5), ("b", "ctr3", 0.5))), OTHER],
            "arm 'b' of experiment 'tower' names application 'ctr3'",
            "ctr, ctr2",
        ),
        (
            [
                Application("ctr", "ctr", divided(("a", "ctr", 0.5), ("b", "cvr", 0.5))),
                Application("cvr", "cvr", GatewaySettings()),
            ],
            "answers to 'cvr', not to 'ctr'",
            'serves="ctr"',
        ),
        ([Application("ctr", "ctr", divided(("a", "ctr", 0.5), ("a", "ctr", 0.5)))], "two arms of one name", "rename"),
        (
            [Application("ctr", "ctr", divided(("a", "ctr", 0.5), ("b", "ctr", 0.5), versions={"a": "canary"}))],
            "2 arms of experiment 'tower' are application 'ctr'",
            'version = "active"',
        ),
        (
            [Application("ctr", "ctr", divided(("a", "ctr", 0.5), ("b", "ctr", 0.5), versions={"a": 7, "b": 7}))],
            "2 arms of experiment 'tower' are application 'ctr'",
            "a version of its own",
        ),
        (
            [
                Application("ctr", "ctr", divided(("a", "ctr", 1.0))),
                Application("cvr", "cvr", divided(("a", "cvr", 1.0))),
            ],
            "two experiments have one name, 'tower'",
            "rename that of",
        ),
        ([Application("ctr", "ctr", divided(("a b", "ctr", 1.0)))], "'a b' cannot be the name", "up to 31 letters"),
        (
            [
                Application("ctr", "ctr", divided(("a", "ctr", 1.0))),
                Application("ctr2", "ctr", divided(("a", "ctr2", 1.0))),
            ],
            "ctr and ctr2 both declare",
            "one of them",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_with_a_way_out(apps: list[Application], message: str, hint: str) -> None:
    with pytest.raises(StreamlearnError) as error:
        planned(apps, {})
    assert isinstance(error.value, UsageError | ConfigError)
    assert message in error.value.message
    assert hint in error.value.help


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=16).filter(any))
def test_weights_sum_to_the_whole_and_are_near_their_shares(parts: list[int]) -> None:
    shares = [part / sum(parts) for part in parts]
    weights = weights_of(shares)
    assert sum(weights) == 10_000
    assert all(abs(weight - 10_000 * share) <= 1 + 1e-6 for weight, share in zip(weights, shares, strict=True))


_STATES = st.sampled_from(["starting", "ready", "stale", "aside", "draining"])
_NODES = st.builds(
    lambda number, state, has_address, boot: structs.replace(
        node(number, state, **({} if has_address else {"grpc": ""})), boot_id=f"{number}-{boot}", since_ms=boot
    ),
    st.integers(1, 6),
    _STATES,
    st.booleans(),
    st.integers(0, 5),
)


@given(
    st.lists(st.tuples(_NODES, st.sampled_from(["ctr", "ctr2"])), max_size=12, unique_by=lambda one: one[0].boot_id),
    st.booleans(),
)
def test_whatever_is_registered_each_address_is_used_once_and_only_if_its_node_answers(
    listed: list[tuple[Node, str]], is_divided: bool
) -> None:
    settings = divided(("a", "ctr", 0.5), ("b", "ctr2", 0.5)) if is_divided else SETTINGS
    apps = [Application("ctr", "ctr", settings), Application("ctr2", "ctr", GatewaySettings())]
    nodes = {app: [one for one, owner in listed if owner == app] for app in ("ctr", "ctr2")}
    plan = planned(apps, nodes)
    assert plan == planned(apps, {app: list(reversed(ones)) for app, ones in nodes.items()})
    for backend in plan.backends:
        addresses = [endpoint.grpc for endpoint in backend.endpoints]
        assert addresses == sorted({*addresses})
        owners = [backend.name.replace("ctr.tower.a", "ctr").replace("ctr.tower.b", "ctr2")] if is_divided else [*nodes]
        known = {one.grpc for owner in owners for one in nodes[owner] if one.state != "starting"}
        assert {*addresses} <= known - {""}
        assert is_divided or not any(endpoint.is_aside for endpoint in backend.endpoints)
