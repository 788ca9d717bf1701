"""Model: a model's store, registry, history and pointer put together, for whoever looks at it or moves its pointer.

Each is opened when it is first asked for. It does not know how a model was named: that is its callers'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from streamlearn.errors import RegistryUnreachable, UsageError

if TYPE_CHECKING:
    from streamlearn.settings import Settings
    from streamlearn.versions.format.history import History
    from streamlearn.versions.format.version_summary import Known
    from streamlearn.versions.pointer.mover import Moved, Mover
    from streamlearn.versions.pointer.moves import Pointer
    from streamlearn.versions.pointer.pointer_log import PointerLog
    from streamlearn.versions.pointer.registry import Node, Registry
    from streamlearn.versions.store.interface import Store

    Decision: TypeAlias = Callable[[Pointer, Sequence[Known]], Pointer]

__all__ = ["Model"]


@dataclass(frozen=True)
class Model:
    """A model and where it is.

    Attributes:
        name: Its name.
        store_url: Where its versions are.
        url: Where its nodes are; empty for no registry.
        settings: The application's, or the defaults.
        is_alone: Whether it was said that there is no registry.
    """

    name: str
    store_url: str
    url: str
    settings: Settings
    is_alone: bool = False

    @cached_property
    def store(self) -> Store:
        """Its store."""
        from streamlearn.versions.store.interface import open_store

        return open_store(self.store_url, settings=self.settings.versions)

    @cached_property
    def registry(self) -> Registry | None:
        """Its registry."""
        from streamlearn.versions.pointer.registry import open_registry

        return open_registry(self.url, self.name, self.settings.registry) if self.url else None

    @cached_property
    def log(self) -> PointerLog:
        """The moves of its pointer."""
        from streamlearn.versions.pointer.pointer_log import PointerLog

        log = PointerLog(self.store, self.name)
        if self.registry is not None:
            with suppress(RegistryUnreachable):
                copy = self.registry.pointer()
                log.begin_near(0 if copy is None else copy.seq)
        return log

    @cached_property
    def mover(self) -> Mover:
        """What moves its pointer."""
        from streamlearn.versions.pointer.mover import Mover

        return Mover(self.log, self.registry)

    @cached_property
    def history(self) -> History:
        """Its versions, as far as they are known to the registry without another look."""
        from streamlearn.versions.format.history import History

        known: Sequence[Known] = ()
        if self.registry is not None:
            try:
                known = self.registry.versions()
            except RegistryUnreachable:
                known = ()
        return History(self.store, self.name, known)

    @property
    def pointer(self) -> Pointer:
        """Where its pointer stands."""
        return self.log.newest()

    def known(self) -> tuple[Known, ...]:
        """Its versions, oldest first.

        Raises:
            UsageError: There are none.
        """
        known = self.history.read()
        if not known:
            message = f"{self.store.url} has no version of {self.name!r}"
            raise UsageError(message, help="check the model's name, and --store or STREAMLEARN_STORE")
        return known

    def known_at(self, pointer: Pointer, known: Sequence[Known]) -> Sequence[Known]:
        """Its versions again, where one is served by now that was not there when they were read."""
        is_there = all(ref.version <= known[-1].version for ref in pointer.needed.values())
        return known if is_there else self.known()

    def one(self, version: int) -> Known:
        """One of its versions.

        Raises:
            UsageError: There is none of that number.
        """
        known = self.known()
        for one in known:
            if one.version == version:
                return one
        there = ", ".join(str(one.version) for one in known[-5:])
        message = f"version {version} of {self.name!r} does not exist"
        raise UsageError(message, help=f"the newest are {there}; see `streamlearn versions {self.name}`")

    def nodes(self) -> tuple[list[Node], str]:
        """The nodes there are, and why they are not known."""
        if self.registry is None:
            return [], "no registry was named"
        try:
            return self.registry.nodes(), ""
        except RegistryUnreachable as error:
            return [], error.message

    def move(
        self, decide: Decision, *, what: str, by: str, reason: str = "", wait_s: float = 0.0
    ) -> tuple[Moved, Sequence[Known]]:
        """Move its pointer, and wait until nodes have acted; see `Mover.move`.

        Args:
            decide: The decision, from where the pointer stands and the history as it is then.
            what: What it is called in the audit log, such as "rollback".
            by: Who moves it.
            reason: Why.
            wait_s: How long nodes are waited for; 0 does not wait.

        Returns:
            What became of the move, and the history it was decided by.
        """
        known = self.known()

        def decided(now: Pointer) -> Pointer:
            return decide(now, self.known_at(now, known))

        moved = self.mover.move(decided, by=by, what=what, reason=reason, wait_s=wait_s)
        return moved, self.known_at(moved.pointer, known)

    def close(self) -> None:
        """Let go of its registry, if it was opened."""
        opened = self.__dict__.get("registry")
        if opened is not None:
            opened.close()
