"""Gatherer: reads a model's store and registry, no more often than needed. It judges nothing."""

from __future__ import annotations

from collections.abc import Callable

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.console.snapshot import Gathered
from streamlearn.errors import FileMissing, VersionDefect
from streamlearn.given_up import GivenUpProcess
from streamlearn.settings.console import ConsoleSettings
from streamlearn.versions import Known, Pointer, Request, Requests
from streamlearn.versions.pointer.facts import Facts
from streamlearn.versions.pointer.model import Model
from streamlearn.versions.pointer.request import Refusal
from streamlearn.versions.pointer.switch_log import Switch, SwitchLog

__all__ = ["Gatherer"]


class Gatherer:
    """Reads a model, for one thread at a time.

    `served_name` is the model's name for callers, by default its own. `dead_share` returns the share of ingest's recent
    events that became dead letters, `features` how far computed features are folded, and `workers` who learns the
    model; they are called when versions are listed. `given_up` returns the processes that `up` gave up.
    """

    def __init__(
        self,
        model: Model,
        settings: ConsoleSettings,
        *,
        served_name: str = "",
        clock: Clock = SYSTEM_CLOCK,
        dead_share: Callable[[], float] = lambda: 0.0,
        given_up: Callable[[], tuple[GivenUpProcess, ...]] = tuple,
        features: Callable[[], Facts | None] = lambda: None,
        workers: Callable[[], Facts | None] = lambda: None,
    ) -> None:
        self._model, self._settings, self._clock = model, settings, clock
        self._dead_share, self._dead, self._given_up = dead_share, 0.0, given_up
        self._read_features, self._ask_workers = features, workers
        self._features: Facts | None = None
        self._workers: Facts | None = None
        self._switches = SwitchLog(model.store, served_name or model.name)
        self._switch: Switch | None = None
        self._known: tuple[Known, ...] = ()
        self._requests: tuple[Request, ...] = ()
        self._refused: Refusal | None = None
        self._listed_s: float | None = None
        self._known_ms = 0
        self._moves: dict[int, Pointer | None] = {}

    def gather(self) -> Gathered:
        """Read the present state.

        Raises:
            StoreError: The store did not answer, or the newest record of the pointer is damaged.
        """
        pointer = self._model.pointer
        self._forget_rewritten(pointer)
        self._list(pointer)
        nodes, registry_error = self._model.nodes()
        now_ms = self._clock.wall_ms()
        self._known_ms = self._known_ms if registry_error else now_ms
        moves = self._moves_of(pointer)
        return Gathered(
            model=self._model.name,
            at_ms=now_ms,
            pointer=pointer,
            known=self._known,
            moves=moves,
            moves_left=pointer.seq - len(moves),
            nodes=tuple(nodes),
            gone=() if registry_error else tuple(self._model.missing(nodes)),
            registry=registry_error,
            known_ms=self._known_ms,
            requests=self._requests,
            refused=self._refused,
            switch=self._switch if self._switch and self._switch.seq else None,
            is_live=self._model.settings.topics.time == "wall",
            given_up=self._given_up(),
            dead_share=self._dead if self._dead > self._model.settings.ingest.dead_share_max else 0.0,
            features=self._features,
            workers=self._workers,
        )

    def _list(self, pointer: Pointer) -> None:
        """List versions when it is time, or if one is served that is not known."""
        now_s = self._clock.monotonic_s()
        is_due = self._listed_s is None or now_s - self._listed_s >= self._settings.versions_s
        known = {version.version for version in self._known}
        if is_due or any(ref.version not in known for name, ref in pointer.needed.items() if name != "previous"):
            self._known = self._model.history.read()
            requests = Requests(self._model.store, self._model.name)
            self._requests, self._refused = tuple(requests.waiting(self._known)), requests.refused_last()
            self._switch = self._switches.newest(self._switch)
            self._dead, self._features, self._workers = self._dead_share(), self._read_features(), self._ask_workers()
            self._listed_s = now_s

    def _moves_of(self, pointer: Pointer) -> tuple[Pointer, ...]:
        """Return the newest moves. Unless the store is restored, a move never changes, so each is read once."""
        first = max(1, pointer.seq - self._settings.moves_max + 1)
        for seq in [seq for seq in self._moves if seq < first]:
            del self._moves[seq]
        for seq in range(pointer.seq, first - 1, -1):
            if seq not in self._moves:
                self._moves[seq] = pointer if seq == pointer.seq else self._read(seq)
        return tuple(move for _, move in sorted(self._moves.items()) if move is not None)

    def _forget_rewritten(self, pointer: Pointer) -> None:
        """Forget what was read before the store was restored from an older copy, which uses numbers again."""
        newest = max(self._moves, default=0)
        is_same = newest <= pointer.seq and self._moves.get(newest) == (
            pointer if newest == pointer.seq else self._read(newest)
        )
        if self._moves and not is_same:
            self._moves.clear()
            self._model.forget_history()
            self._listed_s = None

    def _read(self, seq: int) -> Pointer | None:
        try:
            return self._model.log.read(seq)
        except (FileMissing, VersionDefect):
            return None
