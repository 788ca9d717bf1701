"""Target: the running loop that faults hit, and the check that it has recovered."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from streamlearn.apps import AppFolder
from streamlearn.errors import ServiceError, ShardUnreachable
from streamlearn.trainer.workers.leader_link import LeaderLink
from streamlearn.trainer.workers.messages import WorkerState
from streamlearn.versions import Known
from streamlearn.versions.pointer.moves import taints_of
from tools.chaos.answer_log import AnswerLog
from tools.chaos.inverted_history import InvertedHistory
from tools.demo import Feed, Loop
from tools.services import KafkaCluster, Service

__all__ = ["PROCESSES", "WORKERS", "Target"]

WORKERS = ("worker-1", "worker-2")
PROCESSES = ("ingest", "fold", "trainer", "shard-0", "shard-1", *WORKERS, "node-1", "node-2")
_LOOK_S_MAX, _WHO_S_MAX = 120.0, 1.0
_LEADER = "leader"


@dataclass(eq=False)
class Target:
    """The argument of a fault.

    Attributes:
        folder: The application.
        changes: Settings for `--set`.
        loop: The processes.
        feed: The source of events and requests.
        history: The history that the feed replays.
        speed: Event time per wall time.
        answer_log: Some of the nodes' answers.
        chance: The source of randomness.
        services: The services that the loop runs on, by name; empty if it runs on files.
        place: A folder for files of faults.
    """

    folder: AppFolder
    changes: tuple[str, ...]
    loop: Loop
    feed: Feed
    history: InvertedHistory
    speed: float
    answer_log: AnswerLog
    chance: random.Random
    services: Mapping[str, Service | KafkaCluster]
    place: Path
    _slices: dict[str, list[int]] = field(default_factory=dict)

    @property
    def slices(self) -> int:
        """The slices that workers were seen to have learned; there may have been more between two looks."""
        return sum(sum(counts) for counts in self._slices.values())

    @property
    def newest(self) -> Known:
        """The newest version."""
        return self.loop.versions()[-1]

    @property
    def active(self) -> int:
        """The version that the pointer names, or 0."""
        active = self.loop.model.pointer.active
        return 0 if active is None else active.version

    @property
    def store(self) -> Path:
        """The folder of the model's versions."""
        return Path(urlsplit(self.folder.store_url).path) / self.folder.app.name

    def wait_recovered(self, within_s: float) -> None:
        """Wait until all nodes answer with a newer version that has learned everything shown by now.

        For that, everything must be joined, learned, published and followed: all parts work. Only workers could be
        missing then, so all of them must take part again.

        Raises:
            ServiceError: It takes longer, or a tainted version answered.
        """
        newest, event_ms = self.newest.version, self.feed.event_ms

        def has_recovered() -> bool:
            if self.feed.report is not None:
                message = "the feed ended before the loop recovered"
                raise ServiceError(message, help="run it for longer, with --minutes")
            lowest = min(self.feed.last)
            reached_ms = next((known.watermark_ms or 0 for known in self.loop.versions() if known.version == lowest), 0)
            return lowest > newest and reached_ms >= event_ms and self._has_workers()

        self.loop.wait(has_recovered, "a newer version from every node", within_s)
        self.check_clean(set(self.feed.last))

    def _has_workers(self) -> bool:
        """Whether all workers take part."""
        return len(self.look_at_workers()) == self.folder.settings.up.workers

    def look_at_workers(self) -> list[WorkerState]:
        """Return the workers that take part, and count what they have learned."""
        settings, token = self.folder.settings, None if self.loop.token is None else self.loop.token.encode()
        if not settings.up.workers:
            return []
        try:
            with LeaderLink(self.folder, settings.workers.listen[0], token=token) as link:
                workers = [state for state in link.who(_WHO_S_MAX).workers if state.name != _LEADER]
        except ShardUnreachable:
            return []
        for state in workers:
            counts = self._slices.setdefault(state.name, [0])
            if state.slices < counts[-1]:  # it has joined again
                counts.append(0)
            counts[-1] = state.slices
        return workers

    def check_clean(self, versions: set[int]) -> None:
        """Check that none of the versions is tainted now.

        Raises:
            ServiceError: One is.
        """
        tainted = versions & taints_of(self.loop.model.pointer, self.loop.versions()).keys()
        if tainted:
            message = f"nodes answered with tainted versions: {', '.join(map(str, sorted(tainted)))}"
            raise ServiceError(message, help="see `streamlearn versions`")

    def wait_newer(self, version: int) -> None:
        """Wait until a version newer than this one is published."""
        self.loop.wait(lambda: self.newest.version > version, "a newer version", _LOOK_S_MAX)
