"""Replica: a node that follows a registry and a store into serving tables. It does not know how requests come."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from msgspec import structs

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import NodeNotReady, RegistryUnreachable, StoreError, StreamlearnError, VersionDefect
from streamlearn.niceness import BEHIND_LANES, give_way
from streamlearn.settings.versions import ReplicaSettings
from streamlearn.table import TableSet
from streamlearn.versions.format.record import VersionRef
from streamlearn.versions.pointer.ancestors import usable_versions
from streamlearn.versions.pointer.moves import Canary
from streamlearn.versions.pointer.pointer_log import FixedPointer, PointerLog
from streamlearn.versions.pointer.registry import Ack, Door, Node, NodeState, Registry
from streamlearn.versions.replica.backoff import Backoff
from streamlearn.versions.replica.hooks import Hooks
from streamlearn.versions.replica.serving_position import AppliedMove, ServingPosition
from streamlearn.versions.replica.staged_versions import VersionLease
from streamlearn.versions.replica.stager import Source, Stager
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.settings import checked

__all__ = ["NodeStatus", "Replica"]

_LOG = logging.getLogger(__name__)
# How long one call waits for news of the registry, so that the end of a node does not wait for it.
_WAIT_S = 0.5
_NOT_READY_HELP = "see why, or wait longer; an app that changed after its versions were written needs another name"
_ERROR_CHARS_MAX, _STAGED_MAX = 2_000, 1_000
# The nodes of the registry are read at the first of so many heartbeats.
_NODES_BEATS = 5


@dataclass(frozen=True)
class NodeStatus:
    """The state of a node.

    Attributes:
        boot_id: Identifies this start of the node.
        seq: The pointer move that it has acted on.
        heard_seq: The newest pointer move that it knows.
        staged: Versions it could answer with at once, oldest first.
        behind_s: How long it has been behind the pointer; 0 when it is not.
        error: Its current problems, for people; empty when there are none.
    """

    state: NodeState
    boot_id: str
    seq: int
    heard_seq: int
    active: VersionRef | None
    staged: tuple[VersionRef, ...]
    behind_s: float
    error: str


class Replica:
    """A node that follows the pointer of a model.

    It registers, reads the pointer, stages the pointer's versions and newer clean ones ahead of it, and answers with
    the pointer's version as soon as that is ready. If anything fails, the current version keeps answering.

    `make` returns empty serving tables; it is called again whenever tables are rebuilt. `name` is for people, such as
    host and port. Without a registry it follows the store alone. `stage_nice` is the niceness of the staging thread.
    With `held` it answers with that version for good, and follows neither. `door` is how the registry's readers reach
    it; `hear_nodes` is told now and then which nodes there are. `boot_id` identifies this start of the node.

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
        hooks: Hooks | None = None,
        stage_nice: int = BEHIND_LANES,
        held: VersionRef | None = None,
        door: Door | None = None,
        hear_nodes: Callable[[list[Node]], object] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.boot_id, self._since_ms, self._since_s = uuid.uuid4().hex, clock.wall_ms(), clock.monotonic_s()
        self._door, self._hear_nodes, self._beats = door or Door(), hear_nodes, 0
        self._name, self._registry, self._stage_nice, self._clock = name[:200], registry, stage_nice, clock
        self._settings, self._hooks = checked(settings or ReplicaSettings()), hooks or Hooks()
        self._log = PointerLog(store, model, clock=clock) if held is None else FixedPointer(held)
        self._position = ServingPosition(clock)
        files = structs.replace(store.loading, stage_threads=self._settings.stage_threads)
        source = Source(store, model, make, self._settings, checked(files), clock)
        self._stager = Stager(source, self._position, self._hooks, self._after_move)
        self._troubles: dict[str, str] = {}
        self._is_aside = self._is_away = False  # away: the registry did not answer the last call
        self._ack: Ack | None = None
        self._ack_lock, self._hooks_lock = threading.Lock(), threading.Lock()
        self._hooks_turn = 0
        self._hooks_canary: Canary | None = None
        self._hooks_ref: VersionRef | None = None  # the version for which `activate` has returned
        self._beat_s: float | None = None
        self._is_registered, self._is_settled = threading.Event(), threading.Event()
        # `_nudge` wakes the thread that stages, `_glance` the one that reads the pointer in the store.
        self._ended, self._nudge, self._glance = self._stager.ended, threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Follow in threads of its own until `close`."""
        assert not self._threads, "started twice"
        # A store that hangs must not keep a node from hearing the registry, or the other way round.
        for name, work in (("listen", self._listen), ("look", self._look_on), ("stage", self._stage)):
            thread = threading.Thread(target=work, name=f"streamlearn-replica-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Stop following, leave the registry, and refuse new readers; present readers continue."""
        for event in (self._ended, self._nudge, self._glance, self._is_registered):
            event.set()
        for thread in self._threads:
            thread.join(self._settings.close_s)
            if thread.is_alive():
                waited_s = self._settings.close_s
                _LOG.warning("%s is still running after %s s; the node ends without it", thread.name, waited_s)
        if self._position.current is not None:
            self._position.current.close()
        if self._registry is not None:
            # A registry that does not answer forgets this node by itself.
            with suppress(RegistryUnreachable):
                self._registry.leave(self.boot_id)

    def __enter__(self) -> Replica:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the node first answers with the pointer's version, or raise `NodeNotReady` with the reason."""
        if not self._is_settled.wait(timeout_s):
            status = self.status()
            after_s = round(self._clock.monotonic_s() - self._since_s, 1)
            message = f"node {self._name!r} is {status.state} after {after_s} s: {status.error or 'it is staging'}"
            raise NodeNotReady(message, help=_NOT_READY_HELP)

    def step(self) -> None:
        """Run one round in this thread, for tests and for callers with a loop of their own."""
        self._beat()
        self._begin()
        self._look()
        self._ask()
        self._act()
        self._stager.work(is_due=True)
        self._act()
        self._settle()
        self._send_ack()
        self._measure()

    def reading(self, version: int | None = None) -> VersionLease:
        """Return a lease of the active version, or of another staged one such as a canary; entering takes microseconds.

        Raises (on entering):
            NodeNotReady: The node has no version yet.
            VersionRefused: This node does not keep that version.
        """
        return VersionLease(lambda: self._position.current, version)

    def status(self) -> NodeStatus:
        """The state of the node."""
        current = self._position.current
        ready = {} if current is None else current.ready
        troubles = (*self._troubles.copy().values(), *self._stager.troubles.copy().values())
        return NodeStatus(
            state=self._state(), boot_id=self.boot_id, seq=self._position.acted, heard_seq=self._position.pointer.seq,
            active=None if current is None else current.active,
            staged=tuple(ready[version] for version in sorted(ready)),
            behind_s=self._position.behind_s, error="; ".join(troubles),
        )  # fmt: skip

    def usable(self, count: int) -> tuple[VersionRef, ...]:
        """The version that answers, and those before it whose stored answers may stand in; see `usable_versions`."""
        current, pointer = self._position.current, self._position.pointer
        if current is None or current.active is None:
            return ()
        return usable_versions(pointer, self._stager.known, current.active, count)

    def report(self, name: str, trouble: str) -> None:
        """Report a trouble of the node with the next heartbeats; an empty text ends it."""
        if trouble:
            self._troubles[name] = trouble
        else:
            self._troubles.pop(name, None)

    def stand_aside(self, is_aside: bool) -> None:
        """Report at once that another application answers its callers, or that it answers them."""
        if is_aside != self._is_aside:
            self._is_aside = is_aside
            self._beat()

    def _state(self) -> NodeState:
        if self._position.is_draining:
            return "draining"
        if not self._is_settled.is_set():
            return "starting"
        late_s = max(self._position.behind_s, self._position.silent_s)
        if self._is_aside:
            return "aside"
        return "stale" if late_s > self._settings.stale_s else "ready"

    def _listen(self) -> None:
        """The thread that waits for the registry's news and reports the node's status to it."""
        waits = self._stager.backoff()
        while not self._ended.is_set():
            self._guarded("listening", self._listen_once, waits)

    def _listen_once(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._beat_s is None or now_s - self._beat_s >= self._settings.beat_s:
            self._beat_s = now_s
            try:
                self._beat()
                self._send_ack()
                self._list_nodes()
            finally:
                # The store can be read, whatever the registry did.
                self._is_registered.set()
        elif self._registry is None or self._is_away:
            self._ended.wait(min(_WAIT_S, self._settings.beat_s))
        else:
            self._ask(min(_WAIT_S, self._settings.beat_s))
        self._act()
        self._measure()

    def _look_on(self) -> None:
        """The thread that reads the pointer in the store, in case the registry is stale."""
        waits = self._stager.backoff()
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

    def _stage(self) -> None:
        """The thread that stages, at a lower priority than threads that answer."""
        waits = self._stager.backoff()
        while not self._ended.is_set():
            self._nudge.clear()
            # Before the first version is ready, the node can do nothing else.
            if self._position.current is not None:
                give_way(self._stage_nice)
            self._guarded("staging", self._stager.work, waits)
            self._nudge.wait(self._stager.wait_s)

    def _guarded(self, name: str, work: Callable[[], None], waits: Backoff) -> None:
        """Run work; an unexpected error ends no thread: the node continues and reports it."""
        try:
            work()
        except Exception as error:
            _LOG.exception("%s failed", name)
            self._troubles[name] = f"{name} failed: {type(error).__name__}: {error}"
            self._ended.wait(waits.fail())
        else:
            waits.clear()
            self._troubles.pop(name, None)

    def _beat(self) -> None:
        """Report the node's status to the registry."""
        if self._registry is None:
            return
        status = self.status()
        staged = tuple(ref.version for ref in status.staged)[-_STAGED_MAX:]
        node = Node(
            boot_id=self.boot_id, name=self._name, state=status.state, seq=status.seq,
            active=0 if status.active is None else status.active.version, staged=staged,
            said=status.error[:_ERROR_CHARS_MAX], wall_ms=self._clock.wall_ms(), since_ms=self._since_ms,
            **self._door._asdict(),
        )  # fmt: skip
        with self._answering(self._registry) as registry:
            registry.beat(node)

    def _list_nodes(self) -> None:
        """Tell which nodes the registry lists, at some heartbeats."""
        if self._hear_nodes is None or self._registry is None:
            return
        if self._beats % _NODES_BEATS == 0:
            with self._answering(self._registry) as registry:
                self._hear_nodes(registry.nodes())
        self._beats += 1

    def _begin(self) -> None:
        """Begin to read the store's log near the registry's pointer, because listing a long log takes long."""
        if self._position.pointer.seq or self._registry is None or self._is_away:
            return
        with self._answering(self._registry) as registry, suppress(StoreError):
            pointer = registry.pointer()
            self._log.begin_near(0 if pointer is None else pointer.seq)

    def _look(self) -> bool:
        """Read the pointer in the store, which overrides the registry's; returns whether it does not contradict it."""
        heard = self._position.pointer
        try:
            # Reads the record by its name: a listing may be older than the registry's news.
            self._log.begin_near(heard.seq)
            newest = self._log.newest()
        except StreamlearnError as error:
            self._troubles["pointer"] = f"the pointer cannot be read: {error.message}"
            # The registry's copy, which has a checksum, stands in for a damaged record of its number.
            return isinstance(error, VersionDefect) and self._log.is_record(error.path, heard.seq)
        if newest != heard and newest.seq <= heard.seq and not self._log.is_confirmed:
            # A folder that is not mounted looks like this, so it refutes nothing.
            self._troubles["pointer"] = (
                f"the store shows no move of the pointer, although move {heard.seq} was announced"
            )
            return False
        self._troubles.pop("pointer", None)
        if self._position.look(heard, newest):
            message = f"move {heard.seq} is not in the store: this node follows the store, at move {newest.seq}"
            _LOG.warning("%s", message)
            self._troubles["refuted"] = message
        elif newest.seq > heard.seq or (
            self._position.refuted is not None and newest.seq >= self._position.refuted.seq
        ):
            self._troubles.pop("refuted", None)
        if self._position.pointer != heard:
            self._nudge.set()
        return True

    def _ask(self, timeout_s: float = 0.0) -> None:
        """Get the registry's pointer, waiting up to `timeout_s` for a newer one."""
        if self._registry is None or self._is_away:
            return
        with self._answering(self._registry) as registry:
            seq, refuted = self._position.pointer.seq, self._position.refuted
            pointer = registry.wait(seq, timeout_s) if timeout_s else registry.pointer()
            if self._position.hear(pointer):
                self._nudge.set()
                # The node acts on it at once, and compares it with the store meanwhile.
                self._glance.set()
            elif pointer is not None and pointer == refuted:
                # The registry keeps the refuted move until it is corrected, and `wait` returns at once until then.
                self._ended.wait(timeout_s)
            elif refuted is not None and seq < refuted.seq:
                self._troubles.pop("refuted", None)

    @contextmanager
    def _answering(self, registry: Registry) -> Iterator[Registry]:
        """Wrap a call to the registry, which may not answer; the next beat tries again."""
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
        self._after_move(self._position.move())

    def _after_move(self, move: AppliedMove | None) -> None:
        """Call the hooks, and acknowledge the move if it is complete."""
        if move is None:
            return
        # Hooks go before the ack: its receiver may send this node a request at once.
        if move.is_other or move.canary != self._hooks_canary:
            self._call_hooks(move)
        if move.is_done:
            self._stager.meters.moves.inc()
            ack = Ack(
                boot_id=self.boot_id, name=self._name, seq=move.seq, version=move.ref.version, took_ms=move.took_ms,
                wall_ms=self._clock.wall_ms(),
            )  # fmt: skip
            with self._ack_lock:
                self._ack = ack
            self._send_ack()
            self._log_move(move)
        if not self._is_settled.is_set():
            self._glance.set()

    def _log_move(self, move: AppliedMove) -> None:
        """Log one line for each move, for whoever reads the node's log in an incident."""
        pointer = self._position.pointer
        facts: dict[str, object] = {"move": move.seq, "took_ms": round(move.took_ms, 1)}
        if pointer.seq == move.seq:
            facts |= {"by": pointer.by} | ({"reason": pointer.reason} if pointer.reason else {})
        _LOG.info("version %d answers", move.ref.version, extra=facts)

    def _call_hooks(self, move: AppliedMove) -> None:
        """Call `activate`, in the order of moves."""
        with self._hooks_lock:
            if move.turn < self._hooks_turn:
                return
            self._hooks_turn, self._hooks_canary, self._hooks_ref = move.turn, move.canary, None
            try:
                self._hooks.activate(move.ref, move.canary)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
                if isinstance(error, StreamlearnError):
                    why = error.message
                else:
                    _LOG.exception("version %d answers, with a problem", move.ref.version)
                self._troubles["activate"] = f"version {move.ref} answers, with this problem: {why}"
            else:
                self._troubles.pop("activate", None)
            self._hooks_ref = move.ref

    def _send_ack(self) -> None:
        """Send the pending ack; if the registry does not answer, the next beat sends it."""
        with self._ack_lock:
            ack, self._ack = self._ack, None
        if ack is None or self._registry is None:
            return
        is_sent = False
        with self._answering(self._registry) as registry:
            registry.ack(ack)
            is_sent = True
        if not is_sent:
            with self._ack_lock:
                self._ack = self._ack or ack

    def _settle(self) -> bool:
        """Become ready if the pointer that was acted on is still the newest; returns whether the store was read for it.

        The node is registered by then. Without this second look, an operator would not have waited for this node to
        follow a move made between the first look and the registration.
        """
        pointer, current = self._position.pointer, self._position.current
        is_acted = self._position.is_done or self._stager.stood_in_for == pointer
        # Another thread may have moved and still be calling `activate`: fronts have no version until it returns.
        is_told = current is not None and current.active == self._hooks_ref
        if self._is_settled.is_set() or not (is_acted and is_told):
            return False
        if self._look() and self._position.pointer == pointer:
            self._is_settled.set()
            self._beat()
        return True

    def _measure(self) -> None:
        meters, status, current = self._stager.meters, self.status(), self._position.current
        meters.staged.set(len(status.staged))
        meters.staged_max.set(2 * self._settings.versions_kept + 2)
        meters.active.set(0 if status.active is None else status.active.version)
        meters.behind.set(status.behind_s)
        meters.aside.set(self._is_aside)
        meters.readers.set(0 if current is None else current.readers)
        active = None if current is None or current.active is None else current.versions.get(current.active)
        if active is not None and active.manifest.watermark_ms is not None:
            meters.freshness.observe((self._clock.wall_ms() - active.manifest.watermark_ms) / 1_000)
