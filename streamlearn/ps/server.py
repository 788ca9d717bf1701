"""ShardServer: a shard behind sockets. The native server transports rows; this module passes orders to the shard."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from streamlearn.access.renewal import GivenToken
from streamlearn.errors import StreamlearnError
from streamlearn.native import native
from streamlearn.niceness import give_way
from streamlearn.open_files import allow_connections
from streamlearn.ps.orders import Epoch, Export, Failed, Order, Restore, Stats, decode_order
from streamlearn.ps.place import Place
from streamlearn.ps.shard import Shard
from streamlearn.ps.shelf import Shelf
from streamlearn.ps.specification import fingerprint_of, specification_of
from streamlearn.pulse import PULSE
from streamlearn.settings import PsSettings
from streamlearn.table import TableOptions, TableSet

__all__ = ["ShardIdentity", "ShardServer", "limits_of"]

_LIMITS = (
    "frame_bytes_max", "connections_max", "hello_wait_ms_max", "idle_ms_max", "frame_wait_ms_max", "write_wait_ms_max",
    "token_wait_ms", "in_flight_bytes_max", "in_flight_wait_ms_max", "clients_max", "orders_max",
)  # fmt: skip
_POLL_MS = 200
# Niceness of the threads that export, so that threads that answer requests go first.
_EXPORT_NICE = 19
_log = logging.getLogger("streamlearn.ps")


@dataclass(frozen=True)
class ShardIdentity:
    """The shard that a native server serves, and its tables."""

    number: int
    count: int
    parts: tuple[int, int]  # its first part, and the one after its last
    model: str
    fingerprint: bytes
    specification: bytes  # sent to clients that expect other tables


class ShardServer:
    """A shard that listens at the settings' addresses.

    Without a token it lets in every process of this machine. `tls` has the paths of its certificates and key.

    Raises:
        ServiceError: It cannot listen at an address.
        UsageError: Settings contradict each other, or an address that other machines reach has no token.

    Attributes:
        shard: The shard.
        addresses: The addresses it listens at.
    """

    def __init__(
        self,
        place: Place,
        options: Sequence[TableOptions],
        shelf: Shelf,
        settings: PsSettings,
        *,
        token: GivenToken | None = None,
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        fingerprint, specification = fingerprint_of(options), specification_of(options)
        shard = ShardIdentity(place.number, place.count, place.parts, shelf.model, fingerprint, specification)
        paths = None if tls is None else (str(tls[0]), str(tls[1]))
        allow_connections(settings.connections_max)
        self._server = native.PsServer(
            list(settings.listen), shard, token, paths, settings.threads, limits_of(settings)
        )
        self.addresses: list[str] = self._server.addresses
        self.shard = Shard(place, options, shelf, self, settings)
        self._drain_ms, self._restore_s_max = settings.drain_ms_max, settings.restore_wait_s_max
        self._stopped = threading.Event()
        self._side_threads: list[threading.Thread] = []
        self._order_thread = threading.Thread(target=self._obey_all, name="ps-orders", daemon=True)
        self._log_thread = threading.Thread(target=self._log_refused, name="ps-notes", daemon=True)
        self._order_thread.start()
        self._log_thread.start()
        begin, end = place.parts
        fields = {"model": shelf.model, "parts": f"[{begin}, {end})", "tables": len(options)}
        _log.info("shard %s listens on %s", place, " ".join(self.addresses), extra=fields)

    def open(self, tables: TableSet, epoch: Epoch) -> None:
        """Let clients of this epoch read and write the tables."""
        self._server.install(tables.native, (epoch.run, epoch.recovery))

    def close(self) -> None:
        """Stop reads and writes of the tables."""
        self._server.uninstall()

    def served(self) -> Mapping[str, float]:
        """The counts of the native server."""
        counts: dict[str, float] = self._server.stats()
        return counts

    def clients(self) -> list[int]:
        """The numbers of the clients that are connected now."""
        return self._server.clients()

    def stop(self) -> None:
        """Finish the work that was begun, and close everything; further calls do nothing."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        place, begin = self.shard.place, time.monotonic()
        _log.info("shard %s stops after its current work", place, extra={"drain_ms_max": self._drain_ms})
        # No order arrives after this; the last one is obeyed meanwhile.
        self._server.stop(self._drain_ms)
        self._order_thread.join()
        self._log_thread.join()
        self.shard.close()
        # An export whose store does not answer ends with the process.
        for thread in self._side_threads:
            thread.join(self._drain_ms / 1e3)
        left = sum(thread.is_alive() for thread in self._side_threads)
        fields = {"seconds": round(time.monotonic() - begin, 3), "exports_left": left}
        _log.info("shard %s has stopped", place, extra=fields)

    def __enter__(self) -> ShardServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _obey_all(self) -> None:
        while True:
            is_last, request = self._stopped.is_set(), self._server.next_order(_POLL_MS)
            if request is None:
                if is_last:
                    return
                continue
            try:
                self._dispatch(request.id, request.reads_only, request.body)
            except Exception as error:
                # Only this order fails: if the thread ended, no later order would be answered.
                _log.exception("shard %s failed to obey an order", self.shard.place)
                self._server.refuse(request.id, "internal", f"{type(error).__name__}: {error}")

    def _dispatch(self, number: int, reads_only: bool, body: bytes) -> None:
        try:
            order = decode_order(body)
        except StreamlearnError as error:
            self._server.refuse(number, "bad_request", str(error))
            return
        if reads_only and not isinstance(order, Stats):
            reason = f"the client declared itself read-only, but asks to {_name(order)}"
            self._server.refuse(number, "reads_only", reason)
        elif isinstance(order, Restore):
            with PULSE.patience(self._restore_s_max):
                self._obey(number, order)
        elif isinstance(order, Export | Stats):
            # Other orders do not wait for a long export, and a state query waits for no order.
            self._side_threads = [thread for thread in self._side_threads if thread.is_alive()]
            work = self._export if isinstance(order, Export) else self._obey
            thread = threading.Thread(target=work, args=(number, order), name="ps-aside", daemon=True)
            self._side_threads.append(thread)
            thread.start()
        else:
            self._obey(number, order)

    def _export(self, number: int, order: Order) -> None:
        give_way(_EXPORT_NICE)
        self._obey(number, order)

    def _obey(self, number: int, order: Order) -> None:
        try:
            self._server.answer(number, msgspec.json.encode(self.shard.obey(order)))
        except StreamlearnError as error:
            _log.warning("shard %s refused to %s: %s", self.shard.place, _name(order), error.message)
            self._server.answer(number, msgspec.json.encode(Failed.of(error, str(self.shard.place))))
        except Exception as error:
            _log.exception("shard %s failed to %s", self.shard.place, _name(order))
            self._server.refuse(number, "internal", f"{type(error).__name__}: {error}")

    def _log_refused(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopped.is_set()
            # The last look does not wait: every refusal is recorded by then.
            refusals, left_out = self._server.refused(0 if is_last else _POLL_MS)
            for peer, reason in refusals:
                _log.warning("shard %s refused a connection from %s: %s", self.shard.place, peer, reason)
            if left_out:
                _log.warning("shard %s refused %d more connections meanwhile", self.shard.place, left_out)
            if refusals:
                # A pause, so that a client in a retry loop does not fill the log.
                self._stopped.wait(_POLL_MS / 1e3)


def limits_of(settings: PsSettings) -> list[tuple[str, int]]:
    """The limits of a native server."""
    # At least as many sequence numbers as one client may have in flight.
    window = max(settings.window_pushes_max, settings.calls_max * settings.in_flight_blocks_max)
    return [*((name, getattr(settings, name)) for name in _LIMITS), ("window_max", window)]


def _name(order: Order) -> str:
    return str(type(order).__struct_config__.tag)
