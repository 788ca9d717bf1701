"""AccessPlan: which callers reach which nodes, from settings and what nodes registered. It knows nothing of Envoy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import NamedTuple

from streamlearn.access.address import host_and_port
from streamlearn.errors import ConfigError, UsageError
from streamlearn.loopback import is_loopback
from streamlearn.settings.access import Arm, Experiment, GatewaySettings
from streamlearn.versions.pointer.registry import Node

__all__ = ["AccessPlan", "Application", "Backend", "Endpoint", "Share", "check_nodes", "planned"]

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,31}")
_TRUST = "set access.trust_headers = true if only services of your own reach access.listen"


class Application(NamedTuple):
    """What is known of an application: its name, the name that callers use, and its settings."""

    name: str
    served_name: str
    settings: GatewaySettings


class Endpoint(NamedTuple):
    """A node that is sent requests.

    Attributes:
        grpc: Its address, IP:PORT.
        http: Likewise; empty without HTTP.
        is_draining: Whether it gets no new requests.
        is_aside: Whether it answers only the callers of an experiment, and tells others that it is not ready.
        staged: The versions it could answer with.
    """

    grpc: str
    http: str
    is_draining: bool
    is_aside: bool
    staged: tuple[int, ...] = ()


@dataclass(frozen=True)
class Backend:
    """Nodes that answer alike; `lack` says, in words, that they do not keep the version of their arm."""

    name: str
    endpoints: tuple[Endpoint, ...]
    has_tls: bool = False
    lack: str = ""


class Share(NamedTuple):
    """A share of a model's users; `arm` and `version` are what requests are told of it, empty without an experiment."""

    backend: str
    share: float
    arm: str = ""
    version: str = ""


@dataclass(frozen=True)
class AccessPlan:
    """All that a proxy needs to know.

    Attributes:
        settings: Those of the first application.
        shares: For each model's name, how its users are divided.
        notes: What is left out, in words.
    """

    settings: GatewaySettings
    shares: Mapping[str, tuple[Share, ...]]
    backends: tuple[Backend, ...]
    notes: tuple[str, ...] = ()


def planned(applications: Sequence[Application], nodes: Mapping[str, Sequence[Node]]) -> AccessPlan:
    """Plan the access to applications, whose nodes are given by the application's name.

    Raises:
        ConfigError: The settings contradict each other or the applications.
        UsageError: Two applications have one name.
    """
    settings = applications[0].settings
    _check(applications, settings)
    is_open = not is_loopback(host_and_port("access.listen", settings.listen)[0])
    shares, backends, notes = dict[str, tuple[Share, ...]](), list[Backend](), list[str]()
    nodes = _without_collisions(nodes, notes)
    for model in dict.fromkeys(application.served_name for application in applications):
        group = [application for application in applications if application.served_name == model]
        experiment = _experiment(group, applications)
        if experiment is None:
            members = [(Share(model, 1.0), [application.name for application in group])]
        else:
            _check_arms(experiment, group, applications, settings)
            members = [(_share(model, experiment, arm), [arm.app]) for arm in experiment.arms]
        shares[model] = tuple(share for share, _ in members)
        for share, owners in members:
            of_owners = [node for owner in owners for node in nodes.get(owner, ())]
            backends.append(_backend(share, of_owners, is_open=is_open, notes=notes))
    return AccessPlan(settings, shares, tuple(backends), tuple(notes))


def check_nodes(plan: AccessPlan) -> None:
    """Raise UsageError if a backend has no nodes."""
    for backend in plan.backends:
        if not backend.endpoints:
            message = f"no node that can be reached is registered for {backend.name!r}"
            reasons = f": {'; '.join(plan.notes)}" if plan.notes else ""
            raise UsageError(message + reasons, help="start one with `streamlearn serve APP`; --wait waits for nodes")
        if backend.lack:
            hint = "nodes keep the active version, its canary, and some before it: see replica.versions_kept"
            raise UsageError(backend.lack, help=hint)


def _check(applications: Sequence[Application], settings: GatewaySettings) -> None:
    if not settings.listen:
        message = "access.listen is not set"
        raise ConfigError(message, help="give --set access.listen=127.0.0.1:8080")
    host_and_port("access.listen", settings.listen)
    names = [application.name for application in applications]
    if len({*names}) < len(names):
        message = f"two applications have one name: {', '.join(names)}"
        raise UsageError(message, help="give each folder once")
    if settings.balance == "user" and not settings.trust_headers:
        message = 'access.balance is "user", but Envoy removes x-route-key'
        raise ConfigError(message, help=_TRUST)


def _without_collisions(nodes: Mapping[str, Sequence[Node]], notes: list[str]) -> dict[str, list[Node]]:
    """Return the nodes without those at an address where a node of another application answers.

    An application that was started beside another one has its addresses, and stands aside. Of two that answer, the one
    that was started later has the address.
    """
    answering = sorted({(one.since_ms, app, one.grpc) for app, some in nodes.items() for one in some if _answers(one)})
    owners = {address: app for _, app, address in answering}
    for _, app, address in answering:
        if owners[address] != app:
            notes.append(
                f"{address} is registered by {app!r} and later by {owners[address]!r}, which gets its requests: "
                "give each application a front.listen of its own"
            )
    return {app: [one for one in some if owners.get(one.grpc, app) == app] for app, some in nodes.items()}


def _answers(node: Node) -> bool:
    return bool(node.grpc) and node.state not in ("starting", "aside")


def _share(model: str, experiment: Experiment, arm: Arm) -> Share:
    version = "" if arm.version is None else str(arm.version)
    return Share(f"{model}.{experiment.name}.{arm.name}", arm.share, f"{experiment.name}:{arm.name}", version)


def _experiment(group: Sequence[Application], applications: Sequence[Application]) -> Experiment | None:
    """Return the experiment on the callers of one model."""
    declared = [(application, one) for application in group for one in application.settings.experiments]
    if len(declared) > 1:
        where = " and ".join(application.name for application, _ in declared)
        message = f"{where} both declare an experiment on the callers of {group[0].served_name!r}"
        raise ConfigError(message, help="declare it in the app.toml of one of them")
    for application, one in declared:
        names = [other.name for known in applications for other in known.settings.experiments]
        if names.count(one.name) > 1:
            message = f"two experiments have one name, {one.name!r}: they would divide the same users alike"
            raise ConfigError(message, help=f"rename that of {application.name}")
    return declared[0][1] if declared else None


def _check_arms(
    experiment: Experiment,
    group: Sequence[Application],
    applications: Sequence[Application],
    settings: GatewaySettings,
) -> None:
    model, name = group[0].served_name, experiment.name
    if not settings.trust_headers:
        message = f"experiment {name!r} divides users by x-route-key, which Envoy removes"
        raise ConfigError(message, help=_TRUST)
    arms = [arm.name for arm in experiment.arms]
    if len({*arms}) < len(arms):
        message = f"experiment {name!r} has two arms of one name: {', '.join(arms)}"
        raise ConfigError(message, help="rename one")
    for one in (name, *arms):
        if not _NAME.fullmatch(one):
            message = f"{one!r} cannot be the name of an experiment or of an arm"
            raise ConfigError(message, help="use up to 31 letters, digits, `_`, `.` or `-`")
    total = sum(arm.share for arm in experiment.arms)
    if not isclose(total, 1.0, abs_tol=1e-6):
        message = f"the shares of experiment {name!r} sum to {total:g}, not to 1"
        raise ConfigError(message, help=f"change the shares of {', '.join(arms)}")
    served = {application.name: application.served_name for application in applications}
    for arm in experiment.arms:
        alike = [one for one in experiment.arms if one.app == arm.app]
        if len({one.version for one in alike} - {None}) < len(alike) > 1:
            message = f"{len(alike)} arms of experiment {name!r} are application {arm.app!r}"
            hint = 'give each a version of its own, such as version = "active" and version = "canary"'
            raise ConfigError(message, help=hint)
        if arm.app not in served:
            message = f"arm {arm.name!r} of experiment {name!r} names application {arm.app!r}, which is not given"
            raise ConfigError(message, help=f"give its folder as well; those given are {', '.join(served)}")
        if served[arm.app] != model:
            arm_text = f"arm {arm.name!r} of experiment {name!r} is application {arm.app!r}"
            message = f"{arm_text}, which answers to {served[arm.app]!r}, not to {model!r}"
            hint = f'declare App(serves="{model}") there: its nodes refuse requests for another model'
            raise ConfigError(message, help=hint)


def _backend(share: Share, nodes: Iterable[Node], *, is_open: bool, notes: list[str]) -> Backend:
    """Return the nodes to use, in the order of their addresses; `notes` gets those that are left out."""
    name, is_arm = share.backend, bool(share.arm)
    endpoints, tls = dict[str, Endpoint](), dict[str, bool]()
    for node in sorted(nodes, key=lambda node: (node.since_ms, node.boot_id)):
        if node.state == "starting" or (node.state == "aside" and not is_arm):
            continue
        if not node.grpc:
            notes.append(f"node {node.name!r} is of an older release, which registers no address")
        elif is_open and not node.has_token:
            notes.append(f"node {node.name!r} needs no token, but other machines reach access.listen")
        else:
            aside = node.state == "aside"
            endpoints[node.grpc] = Endpoint(node.grpc, node.http, node.state == "draining", aside, node.staged)
            tls[node.grpc] = node.has_tls
    if len({*tls.values()}) > 1:
        some = ", ".join(address for address, has in tls.items() if not has)
        notes.append(f"{some}: without TLS, unlike other nodes of {name!r}")
    used = {address for address, has in tls.items() if has == any(tls.values())}
    chosen = tuple(endpoints[address] for address in sorted(used))
    return Backend(name, chosen, any(tls.values()), _lack(share, chosen, notes))


def _lack(share: Share, endpoints: Sequence[Endpoint], notes: list[str]) -> str:
    kept = sorted({version for endpoint in endpoints for version in endpoint.staged})
    if not kept or not share.version.isdecimal() or int(share.version) in kept:
        return ""
    lack = f"no node keeps version {share.version} of arm {share.arm}; they have {', '.join(map(str, kept))}"
    notes.append(f"{lack}. Its users get the active version, and count for no arm")
    return lack
