"""Plan: the processes of an application on this machine, with their commands and addresses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from streamlearn.access.address import host_and_port
from streamlearn.apps import AppFolder
from streamlearn.errors import UsageError
from streamlearn.loopback import is_loopback
from streamlearn.settings import Settings
from streamlearn.supervision.member import ACCESS, FOLD, INGEST, NODES, SHARDS, TRAINER, WORKERS, Member
from streamlearn.supervision.ports import LOOPBACK, free_ports, is_taken, taken_error

__all__ = ["Plan", "UpOptions", "planned"]

# The distance between the configured ports of two nodes.
_NODE_PORTS_STEP = 10
_PORT_MAX = 65_535
_SHARDS_MAX = 64


@dataclass(frozen=True)
class UpOptions:
    """Options of the command line beside the settings.

    Attributes:
        changes: Settings that override app.toml; every process gets them.
        nodes: The number of serving nodes; `up.nodes` if None.
        shards: The number of shards on this machine; if None, those of `ps.addresses` that are here.
        token_file: The file with the token for callers of nodes.
        shards_token_file: The file with the token of the shards.
        tls: Files of the nodes' certificate and key.
        beside: The folder of a running application whose nodes' sockets are shared.
    """

    changes: tuple[str, ...] = ()
    nodes: int | None = None
    shards: int | None = None
    token_file: Path | None = None
    shards_token_file: Path | None = None
    tls: tuple[Path, Path] | None = None
    beside: Path | None = None
    authority: Path | None = None

    def __post_init__(self) -> None:
        """Refuse an authority without a certificate: nodes would not speak TLS."""
        if self.authority and not self.tls:
            message = "--ca is given without --tls-cert and --tls-key"
            raise UsageError(message, help="give these two files for TLS, or leave --ca out")


@dataclass(frozen=True)
class Plan:
    """The processes to run, dependencies first, and the address of the metrics of `up` itself."""

    members: tuple[Member, ...]
    metrics: str


def planned(
    folder: AppFolder,
    asked: UpOptions,
    free: Callable[[int], Sequence[int]] = free_ports,
    taken: Callable[[int, str], bool] = is_taken,
    *,
    shared: Sequence[Mapping[str, str]] | None = None,
) -> Plan:
    """Plan the processes of an application; `free` and `taken` are used to find and check ports.

    `shared` are the addresses of the nodes of `asked.beside`, by protocol.
    """
    settings = folder.settings
    nodes = settings.up.nodes if asked.nodes is None else asked.nodes
    ports = _different(free)
    shards = _shard_addresses(settings.ps.addresses, asked.shards, ports)
    here = [(number, address) for number, address in enumerate(shards) if _is_here(address)]
    if asked.shards == 0:
        here = []
    if shared is None:
        grpc = _node_addresses("front.listen", settings.front.listen, nodes, ports)
        http = _node_addresses("front.http", settings.front.http, nodes, ports) if settings.front.http else [""] * nodes
        own = [*grpc, *filter(None, http)]
    else:
        _check_shared(asked.beside, shared, nodes, has_http=bool(settings.front.http))
        grpc, http, own = [one["grpc"] for one in shared], [one.get("http", "") for one in shared], []
    makes = not folder.app.samples_of
    folds = makes and bool(folder.app.features.entities)
    access, keeps = _access_address(folder), settings.retrieval.nearline != "off"
    workers, leader = settings.up.workers, _leader_address(settings, shards, ports)
    count = 2 + makes + folds + keeps + bool(access) + len(here) + workers + nodes
    metrics = _metrics_addresses(settings.telemetry.listen, count, ports)
    _check_free([*(address for _, address in here), *own, *filter(None, [access]), *metrics], taken)
    changes = [*asked.changes]
    if shards:
        changes.append(f"ps.addresses={json.dumps(shards)}")
    if leader and not settings.workers.listen:
        changes.append(f"workers.listen={json.dumps([leader])}")
    commands = _Commands(folder, asked, changes, iter(metrics[1:]))
    members = [commands.shard(number, len(shards), address) for number, address in here]
    needs = tuple(member.name for member in members)
    members += [*([commands.ingest()] if makes else []), commands.trainer(needs, leader)]
    members += [commands.worker(number, leader) for number in range(1, workers + 1)]
    members += [commands.fold()] if folds else []
    members += [commands.nearline()] if keeps else []
    members += [commands.node(number, *addresses) for number, addresses in enumerate(zip(grpc, http, strict=True), 1)]
    members += [commands.access(tuple(member.name for member in members if member.stage == NODES))] if access else []
    return Plan(tuple(members), metrics[0])


def _leader_address(settings: Settings, shards: Sequence[str], ports: Iterator[int]) -> str:
    """Return where the trainer listens for workers; empty if `up` starts none."""
    if not settings.up.workers:
        return ""
    if settings.workers.slices == 1 or not shards:
        message = f"up.workers is {settings.up.workers}, with {settings.workers.slices} slices and {len(shards)} shards"
        raise UsageError(message, help="set workers.slices to 2 or more, and give --shards or set ps.addresses")
    return settings.workers.listen[0] if settings.workers.listen else f"{LOOPBACK}:{next(ports)}"


def _access_address(folder: AppFolder) -> str:
    """Return where Envoy listens; empty if it does not run."""
    settings = folder.settings.access
    others = {arm.app for one in settings.experiments for arm in one.arms} - {folder.app.name}
    if settings.listen and others:
        message = f"access.experiments names {', '.join(sorted(others))}, which this command does not run"
        hint = "give --set access.listen= here, and run `streamlearn access APP APP --run` beside"
        raise UsageError(message, help=hint)
    return settings.listen


def _different(free: Callable[[int], Sequence[int]]) -> Iterator[int]:
    """Yield free ports, each once."""
    given = set[int]()
    while True:
        (port,) = free(1)
        if port not in given:
            given.add(port)
            yield port


class _Commands:
    """Makes the members of one application, each with the next address of `metrics`."""

    def __init__(self, folder: AppFolder, asked: UpOptions, changes: Sequence[str], metrics: Iterator[str]) -> None:
        self._folder, self._asked, self._changes, self._metrics = folder, asked, changes, metrics

    def shard(self, number: int, count: int, address: str) -> Member:
        """Return a shard of the parameter server."""
        words = ["ps", "--app", str(self._folder.folder), "--shard", f"{number}/{count}", "--listen", address]
        words += _option("--token-file", self._asked.shards_token_file)
        command, where = self._command(words)
        start_s_max = self._folder.settings.up.start_s_max
        return Member(f"shard-{number}", SHARDS, command, ready_s_max=start_s_max, where={"frames": address, **where})

    def ingest(self) -> Member:
        """Return ingest, which ends when its topics do."""
        command, where = self._command(["ingest", str(self._folder.folder)])
        return Member("ingest", INGEST, command, may_end=True, where=where)

    def fold(self) -> Member:
        """Return the process that folds interactions into states; it ends if another takes over."""
        command, where = self._command(["features", "fold", str(self._folder.folder)])
        return Member("fold", FOLD, command, may_end=True, where=where)

    def nearline(self) -> Member:
        """Return the process that keeps lists of candidates; it ends if another takes over."""
        words = ["nearline", str(self._folder.folder), *_option("--token-file", self._asked.token_file)]
        words += _option("--ca", self._authority)
        command, where = self._command(words)
        return Member("nearline", FOLD, command, may_end=True, where=where)

    def trainer(self, needs: tuple[str, ...], leader: str) -> Member:
        """Return the trainer, with its publisher; `leader` is where it listens for workers, if it does."""
        words = ["train", str(self._folder.folder), *_option("--token-file", self._asked.shards_token_file)]
        command, where = self._command(words)
        addresses = {"workers": leader} if leader else {}
        return Member("trainer", TRAINER, command, needs=needs, where={**addresses, **where})

    def worker(self, number: int, leader: str) -> Member:
        """Return a worker, which learns with the trainer."""
        words = ["work", str(self._folder.folder), "--leader", leader]
        command, where = self._command([*words, *_option("--token-file", self._asked.shards_token_file)])
        return Member(f"worker-{number}", WORKERS, command, needs=("trainer",), where=where)

    def node(self, number: int, grpc: str, http: str) -> Member:
        """Return a serving node, which ends by itself if it is not ready in time."""
        name = f"node-{number}"
        words = ["serve", str(self._folder.folder), "--name", name, "--listen", grpc, "--http", http or "none"]
        certificate, key = self._asked.tls or (None, None)
        words += [*_option("--token-file", self._asked.token_file), *_option("--tls-cert", certificate)]
        words += [*_option("--tls-key", key), *_option("--ca", self._authority)]
        command, where = self._command(words)
        addresses = {"grpc": grpc, "http": http} if http else {"grpc": grpc}
        return Member(name, NODES, command, where={**addresses, **where})

    def access(self, needs: tuple[str, ...]) -> Member:
        """Return Envoy in front of the nodes, which are ready before it."""
        words = ["access", str(self._folder.folder), "--run", "--wait", f"{self._folder.settings.front.ready_s:g}"]
        certificate, key = self._asked.tls or (None, None)
        words += [*_option("--tls-cert", certificate), *_option("--tls-key", key), *_option("--ca", self._authority)]
        command, where = self._command(words)
        return Member(
            "access", ACCESS, command, needs=needs, where={"access": self._folder.settings.access.listen, **where}
        )

    @property
    def _authority(self) -> Path | None:
        """The authority of the certificate of nodes, which may have signed itself; None without TLS."""
        return (self._asked.authority or self._asked.tls[0]) if self._asked.tls else None

    def _command(self, words: list[str]) -> tuple[tuple[str, ...], dict[str, str]]:
        address = next(self._metrics)
        for change in (*self._changes, f"telemetry.listen={address}"):
            words += ["--set", change]
        return (sys.executable, "-m", "streamlearn", *words), {"metrics": address}


def _shard_addresses(configured: Sequence[str], count: int | None, ports: Iterator[int]) -> list[str]:
    """Return the addresses of all shards, on this machine and on others."""
    if count and configured and count != len(configured):
        message = f"--shards asks for {count}, but ps.addresses names {len(configured)}: {', '.join(configured)}"
        raise UsageError(message, help="leave --shards out to start those that are on this machine")
    if count is not None and count > _SHARDS_MAX:
        message = f"--shards asks for {count}; one machine runs at most {_SHARDS_MAX}"
        raise UsageError(message, help="run the shards on several machines, and list them in ps.addresses")
    if configured or not count:
        return list(configured)
    return [f"{LOOPBACK}:{next(ports)}" for _ in range(count)]


def _node_addresses(name: str, configured: str, count: int, ports: Iterator[int]) -> list[str]:
    """Return the addresses of nodes: `_NODE_PORTS_STEP` apart from the configured port on, or free ports if it is 0."""
    _, port = host_and_port(name, configured)
    host = configured.rpartition(":")[0]
    if port == 0:
        return [f"{host}:{next(ports)}" for _ in range(count)]
    highest = port + _NODE_PORTS_STEP * (count - 1)
    if highest > _PORT_MAX:
        message = f"{count} nodes from {name} = {configured} on would need port {highest}"
        raise UsageError(message, help="choose a lower port, or 0 for free ports")
    return [f"{host}:{port + _NODE_PORTS_STEP * index}" for index in range(count)]


def _check_shared(beside: Path | None, shared: Sequence[Mapping[str, str]], nodes: int, *, has_http: bool) -> None:
    """Raise UsageError if nodes cannot share the sockets of as many nodes of another application."""
    if len(shared) != nodes:
        message = f"{beside} runs {len(shared)} nodes, and this application {nodes}: nodes share sockets one to one"
        raise UsageError(message, help=f"give --nodes {len(shared)}")
    kinds = {"grpc", "http"} if has_http else {"grpc"}
    if any({*one} != kinds for one in shared):
        message = f"nodes of only one of {beside} and this application answer by HTTP"
        raise UsageError(message, help="set front.http in both, or in neither")


def _metrics_addresses(listen: str, count: int, ports: Iterator[int]) -> list[str]:
    """Return an address for `up` and one for each process."""
    listen = listen or f"{LOOPBACK}:0"
    _, first = host_and_port("telemetry.listen", listen)
    host = listen.rpartition(":")[0]
    if first == 0:
        return [f"{host}:{next(ports)}" for _ in range(count)]
    if first + count - 1 > _PORT_MAX:
        message = f"telemetry.listen is {listen}, and the {count} ports from it on exceed the highest port"
        raise UsageError(message, help="choose a lower port, or 0 for free ports")
    return [f"{host}:{port}" for port in range(first, first + count)]


def _check_free(addresses: Sequence[str], taken: Callable[[int, str], bool]) -> None:
    seen = set[str]()
    for address in addresses:
        if address in seen:
            message = f"two processes would listen on {address}"
            raise UsageError(
                message, help="change front.listen, front.http, access.listen, ps.addresses or telemetry.listen"
            )
        seen.add(address)
        if address.startswith("unix:"):
            continue
        host, port = host_and_port("address", address)
        if taken(port, host.replace("localhost", LOOPBACK)):
            raise taken_error(address)


def _is_here(address: str) -> bool:
    """Return whether only this machine can reach an address."""
    return address.startswith("unix:") or bool(is_loopback(address.rpartition(":")[0]))


def _option(name: str, value: Path | None) -> list[str]:
    return [] if value is None else [name, str(value)]
