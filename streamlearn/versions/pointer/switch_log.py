"""SwitchLog: which of two applications of one served name answers its callers. The newest record decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

from msgspec import Meta

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import FileTaken, MoveRefused
from streamlearn.versions.format.record import Record
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.layout import model_folder
from streamlearn.versions.store.sequence import Sequence

__all__ = ["Switch", "SwitchLog"]

_TRIES_MAX = 20
_HELP = "write the next one with `streamlearn switch APP --to NAME`: a newer record replaces it"
_Model = Annotated[str, Meta(max_length=64)]
Decision: TypeAlias = Callable[["Switch"], tuple[str, str]]


class Switch(Record, frozen=True, kw_only=True):
    """A decision about the traffic of a served name.

    Attributes:
        current: The application that answers.
        other: The application beside it, which is kept ready; empty if there is none.
        by: Who decided.
    """

    seq: Annotated[int, Meta(ge=0, lt=10**12)] = 0
    current: _Model
    other: _Model = ""
    by: Annotated[str, Meta(max_length=200)] = ""
    reason: Annotated[str, Meta(max_length=2_000)] = ""
    wall_ms: Annotated[int, Meta(ge=0, le=1 << 62)] = 0

    def why_aside(self, model: str) -> str:
        """Return why a model does not answer; empty if it does.

        Examples:
            >>> Switch(seq=2, current="shop2", other="shop").why_aside("shop")
            'shop2 answers the callers of this model (switch 2)'
        """
        return "" if model == self.current else f"{self.current} answers the callers of this model (switch {self.seq})"


class SwitchLog:
    """The switches of a served name.

    Attributes:
        store: The store that has them.

    Examples:
        >>> from streamlearn.versions import open_store
        >>> log = SwitchLog(open_store("memory://switch-example"), "shop")
        >>> log.newest().current
        'shop'
        >>> log.begin("shop", "shop2", by="me").seq, log.switch("shop2", by="me").other
        (1, 'shop')
    """

    def __init__(self, store: Store, served_name: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._records = Sequence(store, model_folder(served_name, "switches"), Switch, help=_HELP)
        self.store, self._served_name, self._clock = store, served_name, clock

    def newest(self, seen: Switch | None = None) -> Switch:
        """Return the newest switch; before the first, the model with the served name is current.

        `seen` is a switch that was read before: the search begins there.
        """
        newer = self._records.newest(0 if seen is None else seen.seq)
        if newer is not None:
            return newer[1]
        return seen or Switch(current=self._served_name)

    def begin(self, current: str, other: str, *, by: str) -> Switch:
        """Let another application stand ready beside the current one.

        Raises:
            MoveRefused: `current` does not answer, or a third application stands ready.
        """
        return self._append(lambda newest: _begun(newest, current, other), by, f"{other} replaces {current}")

    def switch(self, to: str, *, by: str, reason: str = "") -> Switch:
        """Let one of the two applications answer, and the other stand ready; nothing is written if it does already.

        Raises:
            MoveRefused: `to` is neither of them.
        """
        return self._append(lambda newest: _switched(newest, to), by, reason)

    def end(self, *, by: str, reason: str = "") -> Switch:
        """End the migration: only the current application stays.

        Raises:
            MoveRefused: None is under way.
        """
        return self._append(_ended, by, reason)

    def _append(self, decide: Decision, by: str, reason: str) -> Switch:
        for _ in range(_TRIES_MAX):
            newest = self.newest()
            current, other = decide(newest)
            if (current, other) == (newest.current, newest.other):
                return newest
            switch = Switch(
                seq=newest.seq + 1, current=current, other=other, by=by[:200], reason=reason[:2_000],
                wall_ms=max(0, self._clock.wall_ms()),
            )  # fmt: skip
            try:
                self._records.append(switch.seq, switch)
            except FileTaken:
                continue
            return switch
        message = f"others switched {_TRIES_MAX} times meanwhile"
        raise MoveRefused(message, help="find out who switches, and try again")


def _begun(newest: Switch, current: str, other: str) -> tuple[str, str]:
    if newest.current != current:
        message = f"{newest.current} answers callers, not {current}"
        raise MoveRefused(message, help=f"migrate from {newest.current}")
    if newest.other not in ("", other):
        message = f"{newest.other} stands ready beside {current} already"
        raise MoveRefused(message, help="end that migration with `streamlearn switch APP --done`")
    return current, other


def _switched(newest: Switch, to: str) -> tuple[str, str]:
    if to == newest.current:
        return newest.current, newest.other
    if to != newest.other:
        sides = f"{newest.current} and {newest.other}" if newest.other else f"{newest.current} alone"
        message = f"{to!r} is not an application to switch to: there is {sides}"
        raise MoveRefused(message, help="name one of them; `streamlearn migrate NEW --from APP` adds one")
    return to, newest.current


def _ended(newest: Switch) -> tuple[str, str]:
    if not newest.other:
        message = f"{newest.current} is the only application: no migration is under way"
        raise MoveRefused(message, help="`streamlearn migrate NEW --from APP` begins one")
    return newest.current, ""
