"""Ground: the loop that faults strike, and how to tell that it is whole again."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from streamlearn.apps import AppFolder
from streamlearn.errors import ServiceError
from streamlearn.versions import Known
from streamlearn.versions.pointer.moves import taints_of
from tools.chaos.heard import Heard
from tools.chaos.turning import Turning
from tools.demo import Feed, Loop
from tools.services import KafkaCluster, Service

__all__ = ["PROCESSES", "Ground"]

PROCESSES = ("ingest", "trainer", "shard-0", "shard-1", "node-1", "node-2")
_LOOK_S_MAX = 120.0


class Ground:
    """What a fault is given.

    Args:
        folder: The application.
        changes: What `--set` says of it.
        loop: Its processes.
        feed: What they are fed.
        turning: What the feed replays.
        speed: Event time per wall time.
        heard: Some of what nodes answered.
        chance: Where chance comes from.
        services: What the loop stands on, by name; none where it stands on files.
        place: A folder for what a fault leaves.
    """

    def __init__(
        self,
        folder: AppFolder,
        changes: tuple[str, ...],
        loop: Loop,
        feed: Feed,
        *,
        turning: Turning,
        speed: float,
        heard: Heard,
        chance: random.Random,
        services: Mapping[str, Service | KafkaCluster],
        place: Path,
    ) -> None:
        self.folder, self.changes, self.loop, self.feed = folder, changes, loop, feed
        self.turning, self.speed = turning, speed
        self.heard, self.chance, self.services, self.place = heard, chance, services, place

    @property
    def newest(self) -> Known:
        """The newest version."""
        return self.loop.versions()[-1]

    @property
    def active(self) -> int:
        """The version that is served."""
        active = self.loop.model.pointer.active
        return 0 if active is None else active.version

    @property
    def store(self) -> Path:
        """The folder of the model's versions."""
        return Path(urlsplit(self.folder.store_url).path) / self.folder.app.name

    def wait_whole(self, within_s: float) -> None:
        """Wait until all nodes answer with a newer version that has learned all that was shown by now.

        What is shown now has to be joined, learned, published and followed for that: all parts work.

        Raises:
            ServiceError: They do not in time.
        """
        newest, event_ms = self.newest.version, self.feed.event_ms

        def is_whole() -> bool:
            if self.feed.report is not None:
                message = "the feed ended before it was known"
                raise ServiceError(message, help="give it more time")
            lowest = min(self.feed.last)
            reached_ms = next((one.watermark_ms or 0 for one in self.loop.versions() if one.version == lowest), 0)
            return lowest > newest and reached_ms >= event_ms

        self.loop.wait(is_whole, "a newer version from every node", within_s)
        self.check_clean(set(self.feed.last))

    def check_clean(self, answered: set[int]) -> None:
        """Check that none of the versions that answered is tainted now.

        Raises:
            ServiceError: One is.
        """
        tainted = answered & taints_of(self.loop.model.pointer, self.loop.versions()).keys()
        if tainted:
            message = f"nodes answered with tainted versions: {', '.join(map(str, sorted(tainted)))}"
            raise ServiceError(message, help="see `streamlearn versions`")

    def wait_newer(self, version: int) -> int:
        """Wait until there is a version newer than one; gives its number."""
        self.loop.wait(lambda: self.newest.version > version, "a newer version", _LOOK_S_MAX)
        return self.newest.version
