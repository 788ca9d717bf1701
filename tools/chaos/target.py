"""Target: the running loop that faults hit, and the check that it has recovered."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from streamlearn.apps import AppFolder
from streamlearn.errors import ServiceError
from streamlearn.versions import Known
from streamlearn.versions.pointer.moves import taints_of
from tools.chaos.answer_log import AnswerLog
from tools.chaos.inverted_history import InvertedHistory
from tools.demo import Feed, Loop
from tools.services import KafkaCluster, Service

__all__ = ["PROCESSES", "Target"]

PROCESSES = ("ingest", "fold", "trainer", "shard-0", "shard-1", "node-1", "node-2")
_LOOK_S_MAX = 120.0


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

        For that, everything must be joined, learned, published and followed: all parts work.

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
            return lowest > newest and reached_ms >= event_ms

        self.loop.wait(has_recovered, "a newer version from every node", within_s)
        self.check_clean(set(self.feed.last))

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
