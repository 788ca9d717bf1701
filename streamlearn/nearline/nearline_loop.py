"""NearlineLoop: follows what users do, and keeps a list of candidates for each who acted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import DataError, PositionLost, StatesLost, StatesUnreachable
from streamlearn.events.decoder import EventDecoder
from streamlearn.features.behaviour import IMPRESSION
from streamlearn.interactions import decode_interactions
from streamlearn.nearline.candidate_list import CandidateList
from streamlearn.nearline.node_search import NodeSearch, Outcome, Unfound
from streamlearn.nearline.pending_users import PendingUsers
from streamlearn.nearline.user_features import UserFeatures
from streamlearn.nearline.user_inputs import computed_inputs
from streamlearn.online import FeatureReader, Standing, open_state_store
from streamlearn.online.candidate_lists import list_group
from streamlearn.resource import Resource
from streamlearn.serving.infer import Tensor
from streamlearn.topics import Reader

__all__ = ["NearlineCounts", "NearlineLoop"]

_LOG = logging.getLogger(__name__)
# A list without a newer action is kept so long. A new process begins with actions that are at most as old.
_KEEP_MS = 3_600_000
_FEATURES_BYTES_MAX = 256 << 20
_PENDING_MAX = 1 << 16
# A node searches for as many users at once at a fraction of the cost for each.
_USERS_MAX = 32
# The waits after a batch that no node could answer, and for what was not there.
_BACKOFF_S, _BACKOFF_S_MAX = 0.1, 5.0
_POLL_S, _AWAY_S = 0.02, 1.0
_READ_BYTES = 1 << 20
# How often a position is written if no list is.
_POSITION_S = 1.0


@dataclass(slots=True)
class NearlineCounts:
    """Counts since the start.

    Attributes:
        refreshed: Lists that were written.
        unknown: Users without a list, because none of their impressions is known here.
        wrong: Users without a list, because a node refused their request as wrong, or nodes failed at it twice.
        postponed: Requests that no node could answer at the time, asked again later.
        messages_bad: Messages of interactions that cannot be read.
    """

    refreshed: int = 0
    unknown: int = 0
    wrong: int = 0
    postponed: int = 0
    messages_bad: int = 0


_Batch = tuple[list[int], "Future[list[Outcome]]"]


class NearlineLoop(Resource):
    """Refreshes lists.

    Guaranteed: a user who acted gets a list, or is counted as unknown or wrong, whatever process was killed, as long
    as the topic keeps the action for an hour. A list is of one answer of one node. Not guaranteed: that this process is
    the only one; a newer one ends it with `FoldOver`.

    Raises:
        UsageError: See `list_group`.
        TopicMissing: A topic does not exist.
    """

    def __init__(self, folder: AppFolder, search: NodeSearch, *, clock: Clock = SYSTEM_CLOCK) -> None:
        list_group(folder)
        settings = folder.settings
        self._folder, self._search, self._clock = folder, search, clock
        self._features = UserFeatures(folder.app.features, search.read, _FEATURES_BYTES_MAX)
        self._pending = PendingUsers(settings.retrieval.settle_ms / 1_000, _PENDING_MAX)
        with ExitStack() as stack:
            actions = stack.enter_context(folder.open_topic("interactions"))
            impressions = stack.enter_context(folder.open_topic("impressions"))
            self._actions = stack.enter_context(actions.reader())
            self._impressions = stack.enter_context(impressions.reader())
            self._store = stack.enter_context(open_state_store(folder))
            self._states = stack.enter_context(FeatureReader(folder, wait_s=settings.features.reach_s))
            self._pool = stack.enter_context(ThreadPoolExecutor(1, "search"))
            self._opened = stack.pop_all()
        self._group = list_group(folder, actions.partitions)
        self._decoder = EventDecoder.of(folder)
        self._shown = {at: self._back(self._impressions, at) for at in range(impressions.partitions)}
        # Impressions up to there are read before anything else, so that users are known.
        self._shown_ends = {at: self._impressions.end(at) for at in self._shown}
        self._stored: dict[int, Standing] = {}  # as the store has them
        self._read: dict[int, int] = {}  # how far actions are read
        self._newest_ms = 0
        self._asked: _Batch | None = None
        self._unwritten: dict[int, bytes] = {}
        self._size, self._backoff_s, self._again_s, self._due_s = _USERS_MAX, 0.0, 0.0, 0.0
        self._is_away = False
        self.counts = NearlineCounts()

    def close(self) -> None:
        """Close topics and store, once what was asked is answered."""
        self._opened.close()

    @property
    def behind_s(self) -> float:
        """How long ago the oldest action was written whose user has no new list; 0 if there is none."""
        oldest_ms = self._pending.oldest_ms
        return 0.0 if oldest_ms is None else max(0.0, (self._clock.wall_ms() - oldest_ms) / 1_000)

    def step(self) -> bool:
        """Read what came, ask for the next users, and write the lists of the last; return whether there was anything.

        Raises:
            FoldOver: A newer process refreshes these lists.
            StatesUnreachable: The store does not answer; the next call goes on.
            TopicError: A topic cannot be read.
        """
        self._claim()
        has_come = self._read_impressions()
        if any(self._shown[at] < end for at, end in self._shown_ends.items()):
            return has_come
        self._shown_ends = {}
        if not self._pending.is_full:
            has_come |= self._read_actions()
        before = self._asked
        # While a node is busy, it has one batch at a time.
        self._asked = None if before is not None and self._backoff_s else self._next()
        if before is not None:
            self._take(*before)
        self._write()
        return has_come or before is not None or self._asked is not None

    def run(self, stop: threading.Event, beat: Callable[[], None] = lambda: None) -> None:
        """Refresh until `stop` is set, and call `beat` again and again. Raises `FoldOver` if a newer process began."""
        while not stop.is_set():
            try:
                pause_s = 0.0 if self.step() else _POLL_S
                if self._is_away:
                    _LOG.warning("the store at %s answers again", self._store.url)
                self._is_away = False
            except StatesUnreachable as error:
                if not self._is_away:
                    _LOG.error("%s; lists wait for it, and nodes search instead", error.message)
                self._is_away, pause_s = True, _AWAY_S
            beat()
            if pause_s:
                stop.wait(pause_s)

    def _claim(self) -> None:
        """Begin the partitions whose position is not known, or was lost."""
        for partition in range(self._group.partitions):
            if partition in self._stored:
                continue
            if not self._stored:
                self._store.switch(self._group)  # so that nodes know where lists are
            standing = self._store.claim(self._group, partition)
            back, is_same = self._back(self._actions, partition), standing.topic_id == self._actions.topic_id
            position = max(back, standing.position) if is_same else back
            self._stored[partition] = standing
            self._read[partition] = min(position, self._actions.end(partition))

    def _back(self, reader: Reader, partition: int) -> int:
        """Return where a process begins that knows nothing: so far back that its lists are of use."""
        earliest = reader.earliest(partition)
        if self._folder.settings.topics.time == "event":
            return earliest
        return max(earliest, reader.offset_for_time(partition, self._clock.wall_ms() - _KEEP_MS))

    def _read_impressions(self) -> bool:
        has_come = False
        for records in self._next_of(self._impressions, self._shown):
            has_come |= len(records) > 0
            impressions = self._decoder.decode(records.values).impressions
            if len(impressions):
                self._features.add(impressions.columns)
            self._shown[records.partition] = records.next_offset
        return has_come

    def _read_actions(self) -> bool:
        has_come, now_s = False, self._clock.monotonic_s()
        for records in self._next_of(self._actions, self._read):
            of_message = zip(records.offsets.tolist(), records.timestamps_ms.tolist(), records.values, strict=True)
            for offset, written_ms, value in of_message:
                has_come = True
                self._pending.add(self._users(value or b""), records.partition, offset, written_ms, now_s)
            self._read[records.partition] = records.next_offset
        return has_come

    def _next_of(self, reader: Reader, positions: dict[int, int]) -> Iterator[Any]:
        try:
            yield from reader.read_many(positions, max_bytes=_READ_BYTES)
        except PositionLost as error:
            _LOG.error("%s; going on with the first that is there", error.message)
            for partition, position in positions.items():
                earliest = reader.earliest(partition)
                positions[partition] = position if earliest <= position <= reader.end(partition) else earliest

    def _users(self, message: bytes) -> list[int]:
        """Return who acted, by a message of interactions."""
        try:
            batch = decode_interactions(message)
        except DataError:
            self.counts.messages_bad += 1
            return []
        if batch.side != "user" or not len(batch):
            return []
        self._newest_ms = max(self._newest_ms, int(batch.event_time_ms.max()))
        is_action = np.array([name != IMPRESSION for name in batch.kinds])[batch.kind]
        users: list[int] = np.unique(batch.user[is_action & (batch.user != 0)]).tolist()
        return users

    def _next(self) -> _Batch | None:
        """Have a node search for the next users, unless nodes were just too busy or lists wait to be written."""
        now_s = self._clock.monotonic_s()
        if now_s < self._again_s or self._unwritten:
            return None
        users = self._pending.take(self._size, now_s)
        known = {user: features for user in users if (features := self._features.of(user)) is not None}
        self._pending.done(set(users) - known.keys())
        self.counts.unknown += len(users) - len(known)
        if not known:
            return None
        messages = self._messages([*known.values()])
        if messages is None:  # the store does not answer
            self._pending.give_back(users)
            self._again_s = now_s + _AWAY_S
            return None
        return list(known), self._pool.submit(self._search.ask, messages)

    def _messages(self, known: Sequence[tuple[Any, tuple[Tensor, ...]]]) -> list[bytes] | None:
        """Return the requests of users, with columns computed as of now; None if those cannot be computed."""
        at_ms = self._newest_ms if self._folder.settings.topics.time == "event" else None
        found = self._states.users([user for user, _ in known], at_ms)
        if "unavailable" in found.outcomes:
            return None
        computed = computed_inputs(self._search.read, found)
        both = zip(known, computed, strict=True)
        return [self._search.message((*inputs, *of_user)) for (_, inputs), of_user in both]

    def _take(self, users: list[int], asked: Future[list[Outcome]]) -> None:
        """Take the lists that a node found; ask later, and for fewer at once, where it could not."""
        later = []
        for user, found in zip(users, self._search.lists(users, asked.result()), strict=True):
            if isinstance(found, CandidateList):
                self._unwritten[user] = found.encode()
            elif found is Unfound.WRONG or (found is Unfound.FAILED and self._pending.fails_again(user)):
                self.counts.wrong += 1
                self._pending.done([user])
            else:
                later.append(user)
        self.counts.postponed += len(later)
        self._pending.give_back(later)
        if later:
            self._backoff_s = min(max(2 * self._backoff_s, _BACKOFF_S), _BACKOFF_S_MAX)
            self._size = max(1, self._size // 2)
        else:
            self._backoff_s, self._size = 0.0, min(2 * self._size, _USERS_MAX)
        self._again_s = self._clock.monotonic_s() + self._backoff_s

    def _write(self) -> None:
        """Write lists, and from time to time how far each partition is done."""
        now_s = self._clock.monotonic_s()
        self._pending.done(self._unwritten)
        is_due = now_s >= self._due_s or (self._unwritten and not len(self._pending))
        done = self._pending.positions() if is_due else {}
        for partition, before in tuple(self._stored.items()):
            lists = {user: data for user, data in self._unwritten.items() if user % self._group.partitions == partition}
            if not lists and not is_due:
                continue
            position, after = done.get(partition, self._read[partition]), before
            if is_due:
                after = Standing(before.run, position, position, self._newest_ms, self._actions.topic_id)
            try:
                self._store.write(self._group, partition, (before, after), lists, _KEEP_MS)
            except StatesLost as error:
                _LOG.warning("%s: its lists are found again", error.message)
                del self._stored[partition]
                continue
            self._stored[partition] = after
            self.counts.refreshed += len(lists)
            self._unwritten = {user: data for user, data in self._unwritten.items() if user not in lists}
        if is_due:
            self._due_s = now_s + _POSITION_S
