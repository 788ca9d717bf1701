"""Node: serves one model. It follows the versions in a store and reports its state to a registry."""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs
from prometheus_client import REGISTRY

from streamlearn.access.address import reached_at
from streamlearn.access.renewal import GivenToken
from streamlearn.apps import AppFolder
from streamlearn.errors import ConfigError, NodeNotReady
from streamlearn.loopback import is_loopback
from streamlearn.models.tensorflow_load import load_tensorflow
from streamlearn.native import native
from streamlearn.niceness import BEHIND_LANES
from streamlearn.open_files import allow_connections
from streamlearn.pulse import PULSE
from streamlearn.serving.front import Front
from streamlearn.serving.graphs.compile_cache import CompileCache
from streamlearn.serving.hello import is_at_door
from streamlearn.serving.impression_writer import WrittenBack
from streamlearn.serving.inherited_sockets import InheritedSockets
from streamlearn.serving.lanes.lane_kind import LaneKind
from streamlearn.serving.lanes.lanes import Lanes
from streamlearn.serving.model_schema import LibraryInputs
from streamlearn.serving.node_features import NodeFeatures
from streamlearn.serving.node_metrics import DoorCollector, FrontMeters, ShadowMeters
from streamlearn.serving.node_retrieval import NodeRetrieval
from streamlearn.serving.peers import peers_of
from streamlearn.serving.servable_versions import Answering
from streamlearn.serving.switch_follower import UNKNOWN, SwitchFollower
from streamlearn.settings import Settings
from streamlearn.settings.front import FrontSettings
from streamlearn.settings.versions import ReplicaSettings
from streamlearn.table import TableSet, declared_tables
from streamlearn.telemetry import metrics_text
from streamlearn.versions import Chain, Replica, Store, open_registry, open_store
from streamlearn.versions.pointer.registry import Door
from streamlearn.versions.replica.node_replica import NodeStatus

if TYPE_CHECKING:
    from streamlearn.models.tf_calls import Place

__all__ = ["Node", "NodeLimits", "replica_settings"]

_LOG = logging.getLogger(__name__)
# How often metrics and the state that callers see are updated.
_REPORT_S = 0.5
# How long clients on this machine that watch its health have to turn to other nodes.
_WATCHED_S = 1.0
# How often `wait_ready` checks whether its caller gave up.
_WAIT_S = 0.25


class NodeLimits(NamedTuple):
    """The limits of a native node; None stands for the native default."""

    threads: int
    connections_max: int
    requests_max: int
    http_bytes_max: int
    drain_ms_max: int
    arrival_wait_ms_max: int | None = None
    idle_ms_max: int | None = None
    header_bytes_max: int | None = None


class Node:
    """A serving node, from its construction until it is closed.

    It accepts connections at once. It is ready when it answers with the version that the pointer names and all shapes
    of its ladder are compiled. Closing it drains: it is not ready at once. If other machines reach it, it goes on for
    `front.drain_s`, because load balancers learn of that late. Then it answers the requests that it has.

    Args:
        folder: The application; `front`, `serving` and `replica` are its settings.
        name: Its name in the registry; by default its gRPC address, with the host's name if that is of all interfaces.
        token: The token that callers must send.
        tls: Files of the certificate and the key.
        authority: With TLS, the file of the authority that signed the certificates of other nodes.
        cache: The cache of compiled code; see `CompileCache.open`.
        places: The device of each lane, if lanes are threads; by default, those of the settings. Nodes of one process
            share them.
        sockets: Listening sockets in place of the addresses of the settings. The node closes its own descriptors of
            them.
        version: The version that it answers with for good, whatever the pointer names. It is in no registry then.

    Attributes:
        grpc: The gRPC address.
        http: The HTTP address; None without HTTP.
    """

    def __init__(
        self,
        folder: AppFolder,
        *,
        name: str = "",
        token: str | GivenToken | None = None,
        tls: tuple[Path, Path] | None = None,
        authority: Path | None = None,
        cache: CompileCache | None = None,
        places: list[Place] | None = None,
        sockets: InheritedSockets | None = None,
        version: int | None = None,
    ) -> None:
        settings = folder.settings
        splits = _splits(settings.front, has_tls=tls is not None, authority=authority)
        self._settings, self._has_tls = settings.front, tls is not None
        # A node never trains, so its tables need no optimizer and no admission.
        declared = declared_tables(folder.app.tables, settings.tables)
        tables = [structs.replace(options, optimizer=None, admission=None) for options in declared]
        names = [options.spec.name for options in tables]
        retrieval = folder.app.retrieval
        library = None if retrieval is None else LibraryInputs(settings.retrieval.k_max, retrieval.label)
        self._front = Front(folder.app, names, folder.serving, settings.front, settings.allowance, library=library)
        native_front, store = self._front.native, open_store(folder.store_url, settings=settings.versions)
        held = None if version is None else Chain.find(store, folder.app.name, version).ref
        self._kind = _lane_kind(folder, self._front, cache, places)
        self._retrieval = _retrieval(folder, store, names, cache, has_lists=held is None)
        self._answering = Answering(folder, store, self._kind, native_front, self._retrieval)
        self._front.connect(self._answering.versions, self._kind.check)
        self._impressions = WrittenBack(folder, native_front) if settings.impressions.write_back else None
        self._features = NodeFeatures(folder, native_front) if folder.app.features.entities else None
        self._native = _listen(
            folder.app.served_name, native_front, settings.front, token=token, tls=tls, sockets=sockets
        )
        if splits:
            self._native.split(settings.front.split_pieces_max, authority if tls is not None else None)
        if self._impressions is not None:
            self._impressions.start(self._native)
        if self._features is not None:
            self._features.start(self._native)
        if self._retrieval is not None:
            self._retrieval.start(self._native, native_front, lambda count: self._replica.usable(count))
        self.grpc: str = self._native.grpc
        self.http: str | None = self._native.http
        self._addresses = (self.grpc, self.http or self.grpc)
        self._ended, self._was_ready = threading.Event(), False
        self._meters, self._shadow_meters = FrontMeters(native_front, settings.front), ShadowMeters(native_front)
        self._collector = DoorCollector(self._native, native_front, self._features, self._retrieval)
        self._registry = open_registry(folder.registry_url, folder.app.name, settings.registry)
        door = Door(reached_at(self.grpc), reached_at(self.http or ""), tls is not None, token is not None)
        self._replica = Replica(
            store,
            folder.app.name,
            lambda: TableSet(tables),
            name=name or _name_at(self.grpc),
            registry=self._registry if held is None else None,
            settings=replica_settings(settings),
            hooks=self._answering,
            stage_nice=folder.serving.lane_nice + BEHIND_LANES,
            held=held,
            door=door,
            hear_nodes=(lambda nodes: self._native.follow(peers_of(door, nodes))) if splits else None,
        )
        nice, failures_max = folder.serving.lane_nice, folder.serving.lane_failures_max
        self._lanes = Lanes(self._front, self._front.score, self._kind.places, failures_max, nice=nice)
        self._switches = SwitchFollower(store, folder.app.served_name, folder.app.name, self._follow_switch)
        self._replica.start()
        self._reporter = threading.Thread(target=self._report_often, name="node-state", daemon=True)
        self._reporter.start()
        REGISTRY.register(self._collector)

    def wait_ready(self, given_up: threading.Event | None = None) -> bool:
        """Wait until the node answers, for at most `front.ready_s`. Return false if `given_up` was set before.

        It logs why the node is not ready yet.

        Raises:
            NodeNotReady: It was not ready in time; the message says why.
        """
        until_s, logged = time.monotonic() + self._settings.ready_s, ""
        while given_up is None or not given_up.is_set():
            left_s = until_s - time.monotonic()
            try:
                self._replica.wait_ready(max(0.0, min(_WAIT_S, left_s)))
                self._switches.wait_known(max(0.0, min(_WAIT_S, left_s)))
            except NodeNotReady:
                if left_s <= 0:
                    raise
                why = self._replica.status().error
                if why not in ("", logged):
                    _LOG.warning("the node is not ready yet: %s", why)
                    logged = why
            else:
                self._report()
                self._was_ready = True
                return True
        return False

    def _follow_switch(self, reason: str) -> None:
        """Be not ready for a reason, also before the first version; an empty one ends that.

        Requests that reach the node are still answered. If it inherited its sockets, other processes may share them: it
        then accepts no connections, and lets those that it has end after their next answer.
        """
        self._native.stand_aside(reason or None)
        self._replica.stand_aside(bool(reason))

    def status(self) -> NodeStatus:
        """Return the status of the replica."""
        return self._replica.status()

    @property
    def lanes(self) -> int:
        """The number of lanes that run."""
        return self._lanes.alive

    def close(self) -> None:
        """Drain and end."""
        self._ended.set()
        self._switches.close()
        self._reporter.join()
        self._native.set_state(False, "it is shutting down")
        self._native.leave()
        if self._was_ready:
            time.sleep(self._goes_on_s())
        # Connections end when their requests are answered, also those that cross the word that they must end.
        self._native.stop()
        self._front.native.drain()
        self._front.end()
        if self._retrieval is not None:
            self._retrieval.end()
        if self._impressions is not None:
            self._impressions.close()
        if self._features is not None:
            self._features.close()
        self._kind.end()
        self._lanes.join(self._settings.drain_s + 1)
        self._kind.close()
        if self._retrieval is not None:
            self._retrieval.close(self._settings.drain_s + 1)
        self._replica.close()
        REGISTRY.unregister(self._collector)
        self._answering.close()
        self._registry.close()

    def _goes_on_s(self) -> float:
        """How long it still answers while it is not ready, so that clients use other nodes before it ends.

        A client may lose a request that it sends just when it is told to leave the connection.
        """
        if not all(is_loopback(address.rpartition(":")[0]) for address in self._addresses):
            return self._settings.drain_s
        (connections, _), _ = self._native.open()
        return min(self._settings.drain_s, _WATCHED_S) if connections else 0.0

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _report_often(self) -> None:
        while not self._ended.wait(_REPORT_S):
            self._report()
            if PULSE.is_due and self._is_working(PULSE.every_s):
                PULSE.beat()

    def _is_working(self, wait_s: float) -> bool:
        """Whether callers reach the node, lanes run, and no lane has had one execution for longer than `wait_s`."""
        lanes = [self._lanes, *([] if self._retrieval is None else [self._retrieval.lanes])]
        if any(not each.alive or each.held_s > wait_s for each in lanes):
            return False
        return is_at_door(self._native, wait_s, tls=self._has_tls)

    def _report(self) -> None:
        """Update metrics and the state that callers see."""
        self._meters.measure(self._lanes.alive)
        self._replica.report("overload", self._meters.overload)
        self._shadow_meters.measure()
        if self._impressions is not None:
            self._impressions.measure()
        try:
            status = self._replica.status()
        except NodeNotReady:
            return
        reason = status.error or "it has not heard of the pointer lately" if status.state == "stale" else None
        self._native.set_state(status.state in ("ready", "stale", "aside"), reason)


def _retrieval(
    folder: AppFolder, store: Store, tables: list[str], cache: CompileCache | None, *, has_lists: bool
) -> NodeRetrieval | None:
    """Return what finds items, if the application retrieves. Lists may be of other versions than a fixed one."""
    return None if folder.app.towers is None else NodeRetrieval(folder, store, tables, cache, has_lists=has_lists)


def replica_settings(settings: Settings) -> ReplicaSettings:
    """Return the settings of a node's replica: it drains as long as the node."""
    return structs.replace(settings.replica, drain_s=settings.front.drain_s)


def _splits(settings: FrontSettings, *, has_tls: bool, authority: Path | None) -> bool:
    """Return whether requests are split; raises ConfigError if other nodes could not be trusted."""
    splits = settings.split_pieces_max > 1
    if splits and has_tls and authority is None:
        message = f"front.split_pieces_max is {settings.split_pieces_max} and nodes take TLS, but no authority is given"
        raise ConfigError(message, help="give --ca FILE, the certificate of the authority that signed theirs")
    return splits


def _name_at(address: str) -> str:
    """Return the default name of a node, which no node of another machine has."""
    host, _, port = address.rpartition(":")
    return f"{socket.gethostname()}:{port}" if ipaddress.ip_address(host.strip("[]")).is_unspecified else address


def _lane_kind(folder: AppFolder, front: Front, cache: CompileCache | None, places: list[Place] | None) -> LaneKind:
    """Return the lanes that the settings declare. Only lane threads load TensorFlow here."""
    settings = folder.serving
    if settings.lane_processes:
        from streamlearn.serving.lanes.lane_processes import LaneProcesses

        slabs = front.native.slabs()
        assert slabs is not None
        return LaneProcesses(settings, slabs, len(folder.app.labels), cache, front.set_costs)
    load_tensorflow()
    from streamlearn.serving.lanes.lane_threads import LaneThreads

    return LaneThreads(settings, cache, places, front.set_costs)


def _listen(
    model: str,
    front: Any,
    settings: FrontSettings,
    *,
    token: str | GivenToken | None,
    tls: tuple[Path, Path] | None,
    sockets: InheritedSockets | None,
) -> Any:
    """Start the native node. It raises ServiceError if it cannot listen at an address."""
    allow_connections(settings.connections_max)
    limits = NodeLimits(
        settings.threads, settings.connections_max, settings.requests_max, settings.message_bytes_max,
        round(settings.drain_s * 1e3), round(settings.arrival_s * 1e3), round(settings.idle_s * 1e3),
        settings.header_bytes_max,
    )  # fmt: skip
    addresses = (settings.listen, settings.http or None)
    files = None if sockets is None else sockets.files
    try:
        return native.FrontNode(
            model, front, addresses, limits, metrics=metrics_text, token=token, tls=tls, sockets=files, aside=UNKNOWN
        )
    finally:
        if sockets is not None:
            sockets.close()
