"""NodeLists: lists of candidates that a node answers with, and which of them it may use. It makes none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from streamlearn.apps import AppFolder
from streamlearn.errors import StatesUnreachable
from streamlearn.native import native
from streamlearn.online.candidate_lists import list_group
from streamlearn.online.redis_address import redis_address
from streamlearn.online.state_store import GROUP_S, StatePlace, open_state_store
from streamlearn.serving.servable_versions import identity_of
from streamlearn.telemetry import counter_family
from streamlearn.versions import VersionRef

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["NodeLists"]

_LOG = logging.getLogger(__name__)
# How often it is asked which versions' lists may be used, and how much longer a file may take than a Redis.
_FOLLOW_S, _FILE_WAITS = 0.25, 10


class NodeLists:
    """The lists that one node answers with.

    Guaranteed: a request waits no longer than `features.wait_s` for a list, or ten times as long for one in a file;
    without one that may be used, the node searches. A list is used only while its version is the one that answers, or
    one of those that `usable_versions` says.

    Raises:
        UsageError: See `list_group`.
    """

    def __init__(self, folder: AppFolder, front: Any) -> None:
        settings = folder.settings.features
        self._group = list_group(folder)
        self._versions_max = folder.settings.retrieval.cache_versions
        self._store = open_state_store(folder)
        place = redis_address(settings.store)
        waits_s = settings.wait_s if place else _FILE_WAITS * settings.wait_s, settings.reach_s
        user, read = folder.app.features.user_slot, None if place else self._read
        self._native = native.NodeLists(front, user, waits_s, place, read)
        self._is_away, self._ended = False, threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, node: Any, usable: Callable[[int], Sequence[VersionRef]]) -> None:
        """Let a native node answer with lists of the versions that `usable` returns; see `Replica.usable`."""
        self._usable = usable
        self._native.answer(node)

    def follow(self) -> None:
        """Ask which versions' lists may be used from now on. Call it when a version answers."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lists", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread and close the store. Call it when the node answers no more requests."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._store.close()

    def collect(self) -> Iterator[Metric]:
        """Yield its metrics."""
        help = (
            "Requests for items by what became of the user's list: answered; missing; stale, as after a rollback; "
            "damaged; short, with too few items for the request; away, without an answer of the store."
        )
        lists = counter_family("retrieval", "lists", help, ["outcome"])
        for outcome, count in self._native.figures()[0]:
            lists.add_metric([outcome], count)
        yield lists

    def _run(self) -> None:
        polls = 0
        while not self._ended.wait(_FOLLOW_S):
            refs = [(ref.version, identity_of(ref)) for ref in self._usable(self._versions_max)]
            self._native.allow(refs[0] if refs else (0, 0), refs)
            if polls % round(GROUP_S / _FOLLOW_S) == 0:
                self._find()
            polls += 1

    def _find(self) -> None:
        """Learn where lists are."""
        try:
            group = self._store.current_of(self._group)
            if error := self._native.figures()[1]:
                message = f"the lists at {self._store.url} cannot be read by the node: {error}"
                raise StatesUnreachable(message, help="start it, or see why")
        except StatesUnreachable as error:
            if not self._is_away:
                _LOG.error("%s; items are searched for until then", error.message)
            self._is_away = True
            return
        if self._is_away:
            _LOG.warning("the lists at %s can be read again", self._store.url)
        self._is_away = False
        if group is not None:
            self._group = group
            self._native.set_group(group.name, group.partitions)

    def _read(self, keys: Sequence[tuple[int, int]]) -> list[bytes | None] | None:
        group = self._group
        try:
            return self._store.read([StatePlace(group, key) for _, key in keys]) if group.partitions else None
        except StatesUnreachable:
            return None
