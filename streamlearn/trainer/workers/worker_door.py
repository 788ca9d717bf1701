"""WorkerDoor: where workers of other processes reach the leader, by orders of the shards' protocol."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

from streamlearn.access.renewal import GivenToken
from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import StreamlearnError
from streamlearn.native import native
from streamlearn.ps.place import Place
from streamlearn.ps.server import ShardIdentity, limits_of
from streamlearn.ps.specification import fingerprint_of, specification_of
from streamlearn.resource import Resource
from streamlearn.table import declared_tables
from streamlearn.trainer.columns import Inputs
from streamlearn.trainer.workers.assembly import Assembly
from streamlearn.trainer.workers.leader import Leader
from streamlearn.trainer.workers.messages import Ask, Leave, Report, Who, arrays_of, decode, encode

__all__ = ["WorkerDoor"]

_LOG = logging.getLogger("streamlearn.trainer.workers")
_POLL_MS, _ASK_S = 100, 0.5


class WorkerDoor(Resource):
    """Listens for the workers of a model and passes their messages to the leader.

    Without a token it lets in every process of this machine. `tls` has the paths of its certificates and key.

    Attributes:
        addresses: The addresses it listens at.
    """

    def __init__(
        self,
        leader: Leader | Assembly,
        folder: AppFolder,
        *,
        token: GivenToken | None = None,
        tls: tuple[Path, Path] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        place, model, settings = Place(), folder.app.name, folder.settings.ps
        options, listen = declared_tables(folder.app.tables, folder.settings.tables), folder.settings.workers.listen
        identity = ShardIdentity(
            place.number, place.count, place.parts, model, fingerprint_of(options), specification_of(options)
        )
        paths = None if tls is None else (str(tls[0]), str(tls[1]))
        self._server = native.PsServer(list(listen), identity, token, paths, settings.threads, limits_of(settings))
        self.addresses: list[str] = self._server.addresses
        self._leader, self._clock, self._drain_ms = leader, clock, settings.drain_ms_max
        self._waiting, self._lock = dict[int, tuple[Ask, float]](), threading.Lock()
        self._is_closed = threading.Event()
        leader.on_change, leader.connected = self._serve, self._connected
        self._thread = threading.Thread(target=self._listen, name="streamlearn-trainer-workers", daemon=True)
        self._thread.start()
        _LOG.info("workers of %s can join at %s", model, " ".join(self.addresses))

    def close(self) -> None:
        """Send all workers away and stop listening."""
        self._is_closed.set()
        self._server.stop(self._drain_ms)  # workers are answered meanwhile
        self._thread.join()
        self._leader.on_change = lambda: None

    def _connected(self) -> set[str]:
        return {f"{client:x}" for client in self._server.clients()}

    def _listen(self) -> None:
        while True:
            is_last, order = self._is_closed.is_set(), self._server.next_order(_POLL_MS)
            if order is not None:
                self._take(order)
            elif is_last:
                return
            self._serve()

    def _take(self, order: Any) -> None:
        try:
            head, arrays = decode(order.body, "ask")
            if isinstance(head, Ask):
                with self._lock:
                    self._waiting[order.id] = (head, self._clock.monotonic_s() + _ASK_S)
            elif isinstance(head, Who):
                self._server.answer(order.id, encode(self._leader.members()))
            else:
                if isinstance(head, Report):
                    (logits,) = arrays
                    self._leader.report(head, logits)
                elif isinstance(head, Leave):
                    self._leader.leave(head)
                self._server.answer(order.id, b"")
        except StreamlearnError as error:
            self._server.refuse(order.id, "bad_request", error.message)
        except Exception as error:
            _LOG.exception("a worker's message failed")
            self._server.refuse(order.id, "internal", f"{type(error).__name__}: {error}")

    def _serve(self) -> None:
        """Answer the workers for which there is something, and those that have waited for long."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            for number, (ask, deadline_s) in list(self._waiting.items()):
                try:
                    answer = self._leader.answer(ask, always=now_s >= deadline_s or self._is_closed.is_set())
                    if answer is None:
                        continue
                    head, content = answer
                    arrays = arrays_of(content)[2] if isinstance(content, Inputs) else content
                    self._server.answer(number, encode(head, arrays))
                except StreamlearnError as error:
                    _LOG.error("worker %s is refused: %s", ask.name, error.message)
                    self._server.refuse(number, "bad_request", error.message)
                except Exception as error:  # the thread that serves answers all other workers, too
                    _LOG.exception("worker %s cannot be answered", ask.name)
                    self._server.refuse(number, "internal", f"{type(error).__name__}: {error}")
                del self._waiting[number]
