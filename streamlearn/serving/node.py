"""Node: one model's versions, answering requests. It takes them from a store, and tells a registry how it is."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from streamlearn.apps import AppFolder
from streamlearn.errors import NodeNotReady
from streamlearn.models.tensorflow_load import load_tensorflow
from streamlearn.native import native
from streamlearn.niceness import BEHIND_LANES
from streamlearn.open_files import allow_connections
from streamlearn.pulse import PULSE
from streamlearn.serving.door_collector import DoorCollector
from streamlearn.serving.front import Front
from streamlearn.serving.front_meters import FrontMeters
from streamlearn.serving.graphs.compile_cache import CompileCache
from streamlearn.serving.hello import is_at_door
from streamlearn.serving.impression_writer import WrittenBack
from streamlearn.serving.lanes.lane_kind import LaneKind
from streamlearn.serving.lanes.lanes import Lanes
from streamlearn.serving.servable_versions import Answering
from streamlearn.serving.shadow_meters import ShadowMeters
from streamlearn.serving.size_meters import SizeMeters
from streamlearn.settings.front import FrontSettings
from streamlearn.table import TableOptions, TableSet, declared_tables
from streamlearn.telemetry import metrics_text
from streamlearn.versions import Replica, open_registry, open_store
from streamlearn.versions.replica.node_status import NodeStatus

if TYPE_CHECKING:
    from streamlearn.serving.lanes.tf_calls import Place

__all__ = ["Node"]

# How often callers are told anew how the node is.
_STATE_S = 0.2
# How often whoever waits looks whether it is given up.
_LOOK_S = 0.25


class Node:
    """A serving node, from when it is made until it is closed.

    Callers reach it at once; it says that it is ready when it answers with what the pointer says and all shapes of its
    ladder are compiled. Closing it drains: no new requests, those under way are answered.

    Args:
        folder: The application; `front`, `serving` and `replica` are its settings.
        name: What people call it; its gRPC address by default.
        token: What callers must say.
        tls: Files of certificate and key.
        cache: Where compiled code is kept; see `CompileCache.open`.
        places: The device of each lane, where lanes are threads; those of the settings by default. Nodes of one process
            share them.

    Attributes:
        grpc: Where gRPC is served.
        http: Where HTTP is served; None for nowhere.
    """

    def __init__(
        self,
        folder: AppFolder,
        *,
        name: str = "",
        token: str | None = None,
        tls: tuple[Path, Path] | None = None,
        cache: CompileCache | None = None,
        places: list[Place] | None = None,
    ) -> None:
        settings = folder.settings
        self._settings, self._has_tls = settings.front, tls is not None
        options = _tables(folder)
        self._front = Front(folder.app, [one.spec.name for one in options], settings.serving, settings.front)
        native_front, store = self._front.native, open_store(folder.store_url, settings=settings.versions)
        self._kind = _lane_kind(folder, self._front, cache, places)
        self._front.check = self._kind.check
        self._front.answering = Answering(folder, store, self._kind, native_front)
        self._written_back = WrittenBack(folder, native_front) if settings.impressions.write_back else None
        self._native = _opened(folder.app.name, native_front, settings.front, token, tls)
        if self._written_back is not None:
            self._written_back.start(self._native)
        self.grpc: str = self._native.grpc
        self.http: str | None = self._native.http
        self._ended = threading.Event()
        self._meters = FrontMeters(native_front, settings.front)
        self._collector = DoorCollector(self._native, native_front)
        self._more_meters = (SizeMeters(native_front), ShadowMeters(native_front))
        self._registry = open_registry(folder.registry_url, folder.app.name, settings.registry)
        self._replica = Replica(
            store,
            folder.app.name,
            lambda: TableSet(options),
            name=name or self.grpc,
            registry=self._registry,
            settings=settings.replica,
            hooks=self._front.answering,
            stage_nice=settings.serving.lane_nice + BEHIND_LANES,
        )
        nice, failures_max = settings.serving.lane_nice, settings.serving.lane_failures_max
        self._lanes = Lanes(self._front, self._front, self._kind.places, failures_max, nice=nice)
        self._replica.start()
        self._teller = threading.Thread(target=self._tell, name="node-state", daemon=True)
        self._teller.start()
        self._collector.register()

    def wait_ready(self, given_up: threading.Event | None = None) -> bool:
        """Wait until it answers, `front.ready_s` at most; gives whether it does.

        Args:
            given_up: Set when nobody waits any more.

        Raises:
            NodeNotReady: It did not in time; the message says what is in the way.
        """
        until_s = time.monotonic() + self._settings.ready_s
        while given_up is None or not given_up.is_set():
            left_s = until_s - time.monotonic()
            try:
                self._replica.wait_ready(max(0.0, min(_LOOK_S, left_s)))
            except NodeNotReady:
                if left_s <= 0:
                    raise
            else:
                self._say()
                return True
        return False

    def status(self) -> NodeStatus:
        """How it is."""
        return self._replica.status()

    @property
    def lanes(self) -> int:
        """How many lanes are at work."""
        return self._lanes.alive

    def close(self) -> None:
        """Drain and end."""
        self._ended.set()
        self._teller.join()
        self._native.set_state(False, "it is shutting down")
        self._front.native.drain()
        # Connections end when what they asked is answered, which lanes do meanwhile.
        self._native.stop()
        self._front.end()
        if self._written_back is not None:
            self._written_back.close()
        self._kind.end()
        self._lanes.join(self._settings.drain_s + 1)
        self._kind.close()
        self._replica.close()
        self._collector.close()
        self._front.answering.close()
        self._registry.close()

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    def _tell(self) -> None:
        while not self._ended.wait(_STATE_S):
            self._say()
            if PULSE.is_due and self._is_at_work(PULSE.every_s):
                PULSE.beat()

    def _is_at_work(self, wait_s: float) -> bool:
        """Whether callers reach it, and there are lanes, none of which has had one execution in hand for long."""
        if not self._lanes.alive or self._lanes.held_s > wait_s:
            return False
        return is_at_door(self._native, wait_s, tls=self._has_tls)

    def _say(self) -> None:
        self._meters.measure(self._lanes.alive)
        for meters in self._more_meters:
            meters.measure()
        if self._written_back is not None:
            self._written_back.measure()
        try:
            status = self._replica.status()
        except NodeNotReady:
            return
        said = status.error or "it has not heard of the pointer lately" if status.state == "stale" else None
        self._native.set_state(status.state in ("ready", "stale"), said)


def _lane_kind(folder: AppFolder, front: Front, cache: CompileCache | None, places: list[Place] | None) -> LaneKind:
    """Lanes as the settings say: TensorFlow is loaded here only where they are threads."""
    settings = folder.settings.serving
    if settings.lane_processes:
        from streamlearn.serving.lanes.lane_processes import LaneProcesses

        slabs = front.native.slabs()
        assert slabs is not None
        return LaneProcesses(settings, slabs, len(folder.app.labels), cache, front.set_costs)
    load_tensorflow()
    from streamlearn.serving.lanes.lane_threads import LaneThreads

    return LaneThreads(settings, cache, places, front.set_costs)


def _tables(folder: AppFolder) -> list[TableOptions]:
    """Tables that learn nothing."""
    declared = declared_tables(folder.app.features, folder.settings.tables)
    return [structs.replace(one, optimizer=None, admission=None) for one in declared]


def _opened(model: str, front: Any, settings: FrontSettings, token: str | None, tls: tuple[Path, Path] | None) -> Any:
    """The front, reached by callers.

    Raises:
        ServiceError: An address cannot be listened at.
    """
    allow_connections(settings.connections_max)
    return native.FrontNode(
        model,
        front,
        (settings.listen, settings.http or None),
        bounds=(
            settings.threads,
            settings.connections_max,
            settings.requests_max,
            settings.message_bytes_max,
            round(settings.drain_s * 1e3),
        ),
        metrics=metrics_text,
        door=(token, tls),
        arriving=(round(settings.arrival_s * 1e3), round(settings.idle_s * 1e3), settings.header_bytes_max),
    )
