"""Replica: a node that follows a registry and a store into serving tables. It does not know how requests come."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from msgspec import structs

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import NodeNotReady, RegistryUnreachable, StoreError, StreamlearnError
from streamlearn.niceness import BEHIND_LANES, give_way
from streamlearn.settings.versions import ReplicaSettings
from streamlearn.table import TableSet
from streamlearn.versions.pointer.moves import Canary
from streamlearn.versions.pointer.pointer_log import PointerLog
from streamlearn.versions.pointer.registry import Ack, Node, NodeState, Registry
from streamlearn.versions.replica.backoff import Backoff
from streamlearn.versions.replica.hooks import Hooks, NoHooks
from streamlearn.versions.replica.node_status import NodeStatus
from streamlearn.versions.replica.serving_position import Followed, Seat
from streamlearn.versions.replica.staged_versions import Staged
from streamlearn.versions.replica.stager import Source, Stager
from streamlearn.versions.replica.version_lease import Reading
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.settings import LoadSettings, checked

__all__ = ["Replica"]

_LOG = logging.getLogger(__name__)
# How long one question to the registry waits for news, so that a node that ends is not waited for.
_WAIT_S = 0.25
_SAID_CHARS_MAX, _STAGED_MAX = 2_000, 1_000


class Replica:
    """A node that follows the pointer of a model.

    It registers, reads the pointer, stages what it names and newer clean versions ahead of it, and answers with what
    it says as soon as that is ready. Whatever fails meanwhile, what is answered with stays.

    Args:
        store: Where versions are.
        model: Which model.
        make: Makes empty serving tables; called again whenever tables are built anew.
        name: For people, such as host and port.
        registry: Where nodes meet; None follows the store alone.
        settings: How it follows.
        loading: How files are read; `stage_threads` is the settings' own.
        hooks: What else must be ready before a version answers.
        stage_nice: How far the thread that stages gives way to others.
        clock: What time is taken by.

    Attributes:
        boot_id: Of this life of it.

    Examples:
        >>> import numpy as np
        >>> from streamlearn.features import TableSpec
        >>> from streamlearn.table import Changes, TableOptions, TableSet
        >>> from streamlearn.versions import *
        >>> store, tables = open_store("memory://replica-example"), [TableOptions(TableSpec("main", 2, 0.1), 1_000)]
        >>> head = Head(model="ctr", run=1, version=1, kind="base", parent=None, fingerprint="f", windows="w",
        ...     tables=(table_record(TableSet(tables), "main"),))
        >>> writer = VersionWriter(store, head)
        >>> _ = writer.add_rows([Changes("main", np.array([7], np.uint64), np.ones((1, 2), np.float32))])
        >>> ref = writer.finish(Cut()).ref
        >>> log = PointerLog(store, "ctr")
        >>> _ = log.move(lambda pointer: Pointer(active=ref), by="me")
        >>> replica = Replica(store, "ctr", lambda: TableSet(tables), name="node-1")
        >>> replica.step()
        >>> with replica.reading() as read:
        ...     read.version, read.tables["main"].lookup(np.array([7], np.uint64), at=read.at).tolist()
        (1, [[1.0, 1.0]])
        >>> replica.close()
    """

    def __init__(
        self,
        store: Store,
        model: str,
        make: Callable[[], TableSet],
        *,
        name: str,
        registry: Registry | None = None,
        settings: ReplicaSettings | None = None,
        loading: LoadSettings | None = None,
        hooks: Hooks | None = None,
        stage_nice: int = BEHIND_LANES,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.boot_id, self._since_ms = uuid.uuid4().hex, clock.wall_ms()
        self._name, self._registry, self._stage_nice, self._clock = name[:200], registry, stage_nice, clock
        self._settings, self._hooks = checked(settings or ReplicaSettings()), hooks or NoHooks()
        self._log = PointerLog(store, model, clock=clock)
        self._seat = Seat(clock)
        files = structs.replace(loading or store.loading, stage_threads=self._settings.stage_threads)
        source = Source(store, model, make, self._settings, checked(files), clock)
        self._stager = Stager(source, self._seat, self._hooks, self._after_move)
        self._troubles: dict[str, str] = {}
        self._is_away = False
        self._ack: Ack | None = None
        self._ack_lock, self._telling = threading.Lock(), threading.Lock()
        self._told_turn = 0
        self._told_canary: Canary | None = None
        self._beat_s: float | None = None
        self._is_registered, self._is_settled = threading.Event(), threading.Event()
        # Set to wake the thread that stages, and the one that looks at the store.
        self._ended, self._nudge, self._glance = self._stager.ended, threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Follow in threads of its own until it is closed."""
        assert not self._threads, "started twice"
        # A store that hangs must not keep a node from hearing the registry, nor the other way round.
        for name, work in (("listen", self._listen), ("look", self._look_on), ("stage", self._stage)):
            thread = threading.Thread(target=work, name=f"streamlearn-replica-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Stop following and leave the registry. Who reads goes on, and nobody new begins."""
        for event in (self._ended, self._nudge, self._glance, self._is_registered):
            event.set()
        for thread in self._threads:
            thread.join(self._settings.close_s)
            if thread.is_alive():
                _LOG.warning(
                    "%s is still running after %s s; the node ends without it", thread.name, self._settings.close_s
                )
        if self._seat.current is not None:
            self._seat.current.close()
        if self._registry is not None:
            # A registry that is away forgets this node by itself.
            with suppress(RegistryUnreachable):
                self._registry.leave(self.boot_id)

    def __enter__(self) -> Replica:
        self.start()
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the node answers with what the pointer says for the first time.

        Raises:
            NodeNotReady: It did not in time; the message says what is in the way.
        """
        if not self._is_settled.wait(timeout_s):
            status = self.status()
            message = f"node {self._name!r} is {status.state} after {timeout_s} s: {status.error or 'it is staging'}"
            raise NodeNotReady(message, help="see why, or wait longer")

    def step(self) -> None:
        """One round in this thread, for tests and for those who have a loop of their own."""
        self._say()
        self._begin()
        self._look()
        self._ask()
        self._act()
        self._stager.work(is_due=True)
        self._act()
        self._settle()
        self._send_ack()
        self._measure()

    def reading(self, version: int | None = None) -> Reading:
        """A version that stays readable and the same while the context lasts; entering takes microseconds.

        Args:
            version: A version that is staged, such as a canary; the active one by default.

        Raises (when it is entered):
            NodeNotReady: Nothing is there to be read.
            VersionRefused: That version is not kept by this node.
        """
        return Reading(self._current, version)

    def status(self) -> NodeStatus:
        """How the node is."""
        current = self._seat.current
        ready = {} if current is None else current.ready
        troubles = (*self._troubles.copy().values(), *self._stager.troubles.copy().values())
        return NodeStatus(
            state=self._state(),
            boot_id=self.boot_id,
            seq=self._seat.acted,
            heard_seq=self._seat.pointer.seq,
            active=None if current is None else current.active,
            staged=tuple(ready[version] for version in sorted(ready)),
            behind_s=self._seat.behind_s,
            error="; ".join(troubles),
        )

    def _current(self) -> Staged | None:
        return self._seat.current

    def _state(self) -> NodeState:
        if self._seat.is_draining:
            return "draining"
        if not self._is_settled.is_set():
            return "starting"
        late_s = max(self._seat.behind_s, self._seat.silent_s)
        return "stale" if late_s > self._settings.stale_s else "ready"

    def _listen(self) -> None:
        """The thread that hears the registry, and says there how this node is."""
        waits = self._waits()
        while not self._ended.is_set():
            self._guarded("listening", self._listen_once, waits)

    def _listen_once(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._beat_s is None or now_s - self._beat_s >= self._settings.beat_s:
            self._beat_s = now_s
            self._say()
            self._send_ack()
            self._is_registered.set()
        elif self._registry is None or self._is_away:
            self._ended.wait(min(_WAIT_S, self._settings.beat_s))
        else:
            self._ask(min(_WAIT_S, self._settings.beat_s))
        self._act()
        self._measure()

    def _look_on(self) -> None:
        """The thread that looks at the pointer in the store, so that a stale registry hides nothing."""
        waits = self._waits()
        self._is_registered.wait()
        self._guarded("beginning", self._begin, waits)
        while not self._ended.is_set():
            self._glance.clear()
            self._guarded("looking", self._look_once, waits)
            is_alone = self._registry is None or self._is_away
            self._glance.wait(self._settings.store_poll_s if is_alone else self._settings.beat_s)

    def _look_once(self) -> None:
        if not self._settle():
            self._look()
        self._act()

    def _waits(self) -> Backoff:
        return Backoff(self._settings.retry_first_ms, self._settings.retry_ms_max, self._clock)

    def _stage(self) -> None:
        """The thread that stages, after those who answer."""
        waits = self._waits()
        while not self._ended.is_set():
            self._nudge.clear()
            # Before there is anything to answer with, everybody waits for it.
            if self._seat.current is not None:
                give_way(self._stage_nice)
            self._guarded("staging", self._stager.work, waits)
            self._nudge.wait(self._stager.wait_s)

    def _guarded(self, what: str, work: Callable[[], None], waits: Backoff) -> None:
        """A defect of this program ends no thread: the node goes on with what it has, and says so."""
        try:
            work()
        except Exception as error:
            _LOG.exception("%s failed", what)
            self._troubles[what] = f"{what} failed: {type(error).__name__}: {error}"
            self._ended.wait(waits.fail())
        else:
            waits.clear()
            self._troubles.pop(what, None)

    def _say(self) -> None:
        if self._registry is None:
            return
        status = self.status()
        node = Node(
            boot_id=self.boot_id,
            name=self._name,
            state=status.state,
            seq=status.seq,
            active=0 if status.active is None else status.active.version,
            staged=tuple(ref.version for ref in status.staged)[-_STAGED_MAX:],
            said=status.error[:_SAID_CHARS_MAX],
            wall_ms=self._clock.wall_ms(),
            since_ms=self._since_ms,
        )
        with self._answering(self._registry) as registry:
            registry.beat(node)

    def _begin(self) -> None:
        """Begin to look in the store where the registry says that the pointer is: a long log takes long to list."""
        if self._seat.pointer.seq or self._registry is None or self._is_away:
            return
        with self._answering(self._registry) as registry, suppress(StoreError):
            pointer = registry.pointer()
            self._log.begin_near(0 if pointer is None else pointer.seq)

    def _look(self) -> bool:
        """Read the pointer in the store, which decides against whatever was heard; gives whether it could be read."""
        heard = self._seat.pointer
        try:
            # By its name: a listing may be older than what was heard.
            self._log.begin_near(heard.seq)
            newest = self._log.newest()
        except StreamlearnError as error:
            self._troubles["pointer"] = f"the pointer cannot be read: {error.message}"
            return False
        if newest != heard and newest.seq <= heard.seq and not self._log.is_confirmed:
            # A folder that is not mounted looks like this: it is no evidence against what was heard.
            self._troubles["pointer"] = (
                f"the store shows no move of the pointer, although move {heard.seq} was announced"
            )
            return False
        self._troubles.pop("pointer", None)
        if self._seat.look(heard, newest):
            message = f"move {heard.seq} is not in the store: this node follows the store, at move {newest.seq}"
            _LOG.warning("%s", message)
            self._troubles["refuted"] = message
        elif newest.seq > heard.seq or (self._seat.refuted is not None and newest.seq >= self._seat.refuted.seq):
            self._troubles.pop("refuted", None)
        if self._seat.pointer != heard:
            self._nudge.set()
        return True

    def _ask(self, timeout_s: float = 0.0) -> None:
        """Hear from the registry, waiting for so long when it has nothing new."""
        if self._registry is None or self._is_away:
            return
        with self._answering(self._registry) as registry:
            seq, refuted = self._seat.pointer.seq, self._seat.refuted
            pointer = registry.wait(seq, timeout_s) if timeout_s else registry.pointer()
            if self._seat.hear(pointer):
                self._nudge.set()
                # It is acted on at once, and compared with the store meanwhile.
                self._glance.set()
            elif pointer is not None and pointer == refuted:
                # It stays there until somebody tells the registry the store's; until then `wait` does not wait.
                self._ended.wait(timeout_s)
            elif refuted is not None and seq < refuted.seq:
                self._troubles.pop("refuted", None)

    @contextmanager
    def _answering(self, registry: Registry) -> Iterator[Registry]:
        """A call to the registry, which may be away; it is asked again with the next beat."""
        try:
            yield registry
        except RegistryUnreachable as error:
            self._is_away = True
            self._troubles["registry"] = error.message
        else:
            if self._is_away:
                self._is_away = False
                self._glance.set()
            self._troubles.pop("registry", None)

    def _act(self) -> None:
        self._after_move(self._seat.move())

    def _after_move(self, moved: Followed | None) -> None:
        """Tell whoever is to be told that the pointer was acted on."""
        if moved is None:
            return
        # Before the ack: who waits for it may ask this node at once.
        if moved.is_other or moved.canary != self._told_canary:
            self._tell(moved)
        if moved.is_done:
            self._stager.meters.moves.inc()
            ack = Ack(
                boot_id=self.boot_id,
                name=self._name,
                seq=moved.seq,
                version=moved.ref.version,
                took_ms=moved.took_ms,
                wall_ms=self._clock.wall_ms(),
            )
            with self._ack_lock:
                self._ack = ack
            self._send_ack()
            if not self._is_settled.is_set():
                self._glance.set()

    def _tell(self, moved: Followed) -> None:
        """Tell the hooks, in the order of moves."""
        with self._telling:
            if moved.turn < self._told_turn:
                return
            self._told_turn, self._told_canary = moved.turn, moved.canary
            try:
                self._hooks.activate(moved.ref, moved.canary)
            except StreamlearnError as error:
                self._troubles["activate"] = f"version {moved.ref} answers, with this problem: {error.message}"
            else:
                self._troubles.pop("activate", None)

    def _send_ack(self) -> None:
        """Send the ack that was not sent yet; one that cannot be is sent with the next beat."""
        with self._ack_lock:
            ack, self._ack = self._ack, None
        if ack is None or self._registry is None:
            return
        sent = False
        with self._answering(self._registry) as registry:
            registry.ack(ack)
            sent = True
        if not sent:
            with self._ack_lock:
                self._ack = self._ack or ack

    def _settle(self) -> bool:
        """Be ready, when the pointer that was acted on is still the newest; gives whether it was looked at for that.

        The node is registered by then. A move between the first look and that would have been waited for by nobody.
        """
        seat = self._seat
        pointer = seat.pointer
        if self._is_settled.is_set() or not (seat.is_done or self._stager.stood_in_for == pointer):
            return False
        if self._look() and seat.pointer == pointer:
            self._is_settled.set()
            self._say()
        return True

    def _measure(self) -> None:
        meters, status, current = self._stager.meters, self.status(), self._seat.current
        meters.staged.set(len(status.staged))
        meters.staged_max.set(2 * self._settings.versions_kept + 2)
        meters.active.set(0 if status.active is None else status.active.version)
        meters.behind.set(status.behind_s)
        meters.readers.set(0 if current is None else current.readers)
        active = None if current is None or current.active is None else current.versions.get(current.active)
        if active is not None and active.manifest.watermark_ms is not None:
            meters.freshness.observe((self._clock.wall_ms() - active.manifest.watermark_ms) / 1_000)
